"""The participant's side of the protocol, without I/O: records in, decisions out.

The shell (``elasticjob.agent.handler``) feeds every round record that it sees to :meth:`Participant.observe`
and asks what to do. Nothing here blocks, writes, or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.round_record import RUNNING, Outcome, Phase, RoundRecord

HANG = "Hang"
"""The cause of a round that did not get on any more, as the record names it."""
WITH_NOTICE = frozenset({"Suspended", "ScaledDown", "ScaledUp", "Preempted", "Evicted", "PodDeleted"})
"""Causes of which everybody knows before a member's process ends."""

RANK_UNKNOWN = -1
"""The rank of a participant that may be a member: the leader's store knows."""


@dataclass(frozen=True)
class Membership:
    """A place in one round. ``group_rank`` is the position in the member list, 0 leads; ``RANK_UNKNOWN``
    until the leader's store has told it. Of a round whose record does not have them the leader reads the
    ``member_ids``."""

    job_uid: str
    number: int
    nonce: str
    id: str
    group_rank: int
    size: int
    leader_endpoint: str
    limits: Limits
    member_ids: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """The prefix of the round's keys in the leader's store: no other round can touch them."""
        return f"elasticjob/{self.job_uid}/{self.number}/{self.nonce}"


@dataclass(frozen=True)
class Enter:
    """The announced id is a member, or may be one: establish this round."""

    membership: Membership


@dataclass(frozen=True)
class AnnounceAgain:
    """The announced id will never be a member: take a new one. ``membership``: of the round that was over
    before it could be entered, if it was one of its members."""

    why: str
    membership: Membership | None = None


@dataclass(frozen=True)
class Stop:
    """The job is over. ``complete``: well, so leave quietly; else the message says why."""

    complete: bool
    message: str


@dataclass(frozen=True)
class KeepWaiting:
    """Go on waiting; ``waiting_message`` is the operator's sentence on what the next round waits for."""

    waiting_message: str


class Participant:
    """One agent's view of the job.

    ``job_uid`` pins the job where the pod was made for it; otherwise the Lease decides, and a job that
    was followed by another of the same name never comes back.
    """

    def __init__(self, job_uid: str = "") -> None:
        self._pinned = job_uid
        self._former: set[str] = set()
        self.latest: RoundRecord | None = None
        self.announced: ParticipantRecord | None = None
        self.membership: Membership | None = None

    def observe(self, record: RoundRecord) -> bool:
        """Take a record in, unless it is older than what was seen. Returns whether it changed anything.

        Records of one job only move forward in (round, phase); the waiting sentence and whether members are
        being replaced may change alone.
        """
        latest = self.latest
        if (self._pinned and record.job_uid != self._pinned) or record.job_uid in self._former:
            return False
        if latest is not None and latest.job_uid != record.job_uid:
            self._former.add(latest.job_uid)
        elif latest is not None and (record.order < latest.order or record == latest):
            return False
        self.latest = record
        return True

    def unpublish(self) -> None:
        """The record was deleted, with its job or by hand. A running round goes on (I5), but nothing says any
        more that members of it are being replaced."""
        if self.latest is not None:
            self.latest = replace(self.latest, replacing=False)

    def announce(
        self,
        new_id: str,
        endpoint: str,
        endpoint_fixed: bool,
        local_world_size: int | None,
        open_files: int = 0,
        oom_kills: int = 0,
    ) -> ParticipantRecord:
        """Leave whatever round this was a member of and ask for a place in the next."""
        last = self.membership
        if last is None and self.announced is not None:
            last_uid, from_round = self.announced.from_job_uid, self.announced.from_round
        else:
            last_uid, from_round = (last.job_uid, last.number) if last is not None else ("", 0)
        self.membership = None
        seen_uid, seen = (self.latest.job_uid, self.latest.number) if self.latest is not None else ("", 0)
        self.announced = ParticipantRecord(
            new_id,
            AnnouncedState.JOINING.value,
            endpoint,
            endpoint_fixed,
            last_uid,
            from_round,
            local_world_size,
            seen_uid,
            seen,
            open_files,
            oom_kills,
        )
        return self.announced

    def next_step(self) -> Enter | AnnounceAgain | Stop | KeepWaiting:
        """What an announced participant has to do now.

        An announcement is for one round, so a participant without a place in it makes the next at once: then
        it can be added whenever this round ends. Asking changes nothing.
        """
        record, announced = self.latest, self.announced
        if record is None or announced is None:
            return KeepWaiting("")
        if record.phase == Phase.CLOSED.value:
            return Stop(record.outcome == Outcome.COMPLETE.value, record.message)
        seen, running = announced.seen(record.job_uid), record.phase in RUNNING
        if seen >= record.number or not (running or record.phase == Phase.BROKEN.value):
            return KeepWaiting(record.waiting_message)
        rank = self._group_rank(record, announced.id) if seen == record.number - 1 else None
        if rank is None:
            return AnnounceAgain(f"round {record.number} was formed without this pod")
        place = self._make_membership(record, announced, rank)
        if not running:
            return AnnounceAgain(f"round {record.number} ended before this pod could enter it", place)
        return Enter(place)

    def take_step(self) -> Enter | AnnounceAgain | Stop | KeepWaiting:
        """The next step, which is taken: the place that it gives in a round is this participant's."""
        step = self.next_step()
        if isinstance(step, (Enter, AnnounceAgain)) and step.membership is not None:
            self.membership = step.membership
        return step

    @staticmethod
    def _group_rank(record: RoundRecord, own_id: str) -> int | None:
        """The rank in this round, as far as its record tells; None: no member."""
        if record.leader_id == own_id:
            return 0
        if not record.member_ids:
            return RANK_UNKNOWN
        return record.member_ids.index(own_id) if own_id in record.member_ids else None

    @staticmethod
    def _make_membership(record: RoundRecord, announced: ParticipantRecord, rank: int) -> Membership:
        return Membership(
            job_uid=record.job_uid,
            number=record.number,
            nonce=record.nonce,
            id=announced.id,
            group_rank=rank,
            size=record.size,
            leader_endpoint=record.leader_endpoint,
            limits=record.limits,
            member_ids=record.member_ids,
        )

    def set_group_rank(self, rank: int) -> None:
        """The leader's store knows the rank."""
        if self.membership is not None:
            self.membership = replace(self.membership, group_rank=rank)

    def drop_membership(self) -> None:
        """The leader's store does not know the announced id: announce again, for the next round."""
        self.membership = None

    def end_reason(self) -> str:
        """Why the round that this is a member of is over, or "" while the record does not say so.

        No record, an unknown phase, and a job that has closed well all change nothing: a
        running round is not broken by any absence (I5). But an agent that still asks for its rank when the
        job has closed well was no member: all members have succeeded.
        """
        record, mine = self.latest, self.membership
        if record is None or mine is None:
            return ""
        if record.job_uid != mine.job_uid:
            return "the job was deleted and created again"
        if record.number > mine.number:
            return f"round {record.number} was formed"
        if record.number == mine.number:
            if record.phase == Phase.BROKEN.value:
                return f"{record.cause}: {record.message}" if record.cause else "the round is broken"
            well = record.outcome == Outcome.COMPLETE.value
            if record.phase == Phase.CLOSED.value and (not well or mine.group_rank == RANK_UNKNOWN):
                return f"the job has ended: {record.message}"
        return ""

    def _own_record(self) -> RoundRecord | None:
        """The latest record, if it is of the round that this is a member of."""
        record, mine = self.latest, self.membership
        if record is None or mine is None:
            return None
        return record if (record.job_uid, record.number) == (mine.job_uid, mine.number) else None

    def drain_asked(self) -> bool:
        """Whether the workers of the round that this is a member of are asked to stop at a common step."""
        record = self._own_record()
        return record is not None and record.phase == Phase.DRAINING.value

    def replaces(self) -> bool:
        """Whether the round that this is a member of goes on until the next pods of members that leave have
        joined."""
        record = self._own_record()
        return record is not None and record.phase == Phase.ACTIVE.value and record.replacing

    def round_hung(self) -> bool:
        """Whether the round that this is a member of was ended because it did not get on any more."""
        record = self._own_record()
        return (
            record is not None
            and record.phase in (Phase.BROKEN.value, Phase.CLOSED.value)
            and record.cause == HANG
        )

    def ended_for_who_leaves(self) -> bool:
        """Whether the last round has ended because members leave, or the job changes: it is no news then that
        one of them has gone."""
        return self.latest is not None and self.latest.cause in WITH_NOTICE

    def job_complete(self) -> bool:
        """Whether the job is Complete."""
        record = self.latest
        return (
            record is not None
            and record.phase == Phase.CLOSED.value
            and record.outcome == Outcome.COMPLETE.value
        )

    def succeeded(self) -> ParticipantRecord | None:
        """The record that says that this member's workers have finished the round well."""
        mine, announced = self.membership, self.announced
        if mine is None or announced is None:
            return None
        self.announced = replace(
            announced, state=AnnouncedState.SUCCEEDED.value, from_job_uid=mine.job_uid, from_round=mine.number
        )
        return self.announced

    def leaving(self) -> ParticipantRecord | None:
        """The record that says that this agent ends on a signal."""
        announced = self.announced
        if announced is None or announced.state == AnnouncedState.SUCCEEDED.value:
            return None
        self.announced = replace(announced, state=AnnouncedState.LEAVING.value)
        return self.announced
