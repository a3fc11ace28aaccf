"""The participant's side of the protocol: records in, actions out.

``elasticjob.agent.handler`` gives each round record that it sees to :meth:`Participant.observe` and asks what
to do. Nothing here blocks, writes, or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import AnnouncedState, ParticipantRecord
from elasticjob.contract.round_record import RUNNING, Outcome, Phase, RoundRecord

HANG = "Hang"
"""The cause of a round that made no progress, as in its record."""
WITH_NOTICE = frozenset({"Suspended", "ScaledDown", "ScaledUp", "Preempted", "Evicted", "PodDeleted"})
"""Causes that all members know before a member's process ends."""

RANK_UNKNOWN = -1
"""The rank of a participant that may be a member; the leader's store has it."""


@dataclass(frozen=True)
class Membership:
    """A place in one round: what its record says, and which member this is."""

    job_uid: str
    number: int
    """1 or more."""
    nonce: str
    id: str
    """That of the announcement, not "": ``member_ids[group_rank] == id`` if both are known."""
    group_rank: int
    """0 leads; ``0 <= group_rank < size``, or RANK_UNKNOWN until it is read from the leader's store."""
    size: int
    leader_endpoint: str
    limits: Limits
    member_ids: tuple[str, ...] = ()
    """() for a large round, ``size > INLINE_MEMBERS``; its leader reads them."""

    @property
    def prefix(self) -> str:
        """The prefix of the round's keys in the leader's store: no other round can touch them."""
        return f"elasticjob/{self.job_uid}/{self.number}/{self.nonce}"


@dataclass(frozen=True)
class Enter:
    """Establish this round: the announced id is a member, or may be one (RANK_UNKNOWN)."""

    membership: Membership


@dataclass(frozen=True)
class AnnounceAgain:
    """Take a new id: the announced one will never be a member of a round that runs."""

    why: str
    membership: Membership | None = None
    """Its place in the round that was over before it could be entered, if it had one."""


@dataclass(frozen=True)
class Stop:
    """End: the job is over. Either it is ``complete``, or the message says why it failed."""

    complete: bool
    message: str


@dataclass(frozen=True)
class KeepWaiting:
    """Wait; ``waiting_message`` is the operator's sentence on what the next round waits for."""

    waiting_message: str


class Participant:
    """One agent's view of the job. ``job_uid``: that for which the pod was made, "" if it can be any."""

    def __init__(self, job_uid: str = "") -> None:
        self._pinned = job_uid
        self._former: set[str] = set()
        """UIDs of jobs of this name that another has followed: they never come back."""
        self.latest: RoundRecord | None = None
        """The newest record, never of a former job. For one job ``latest.order`` never decreases."""
        self.announced: ParticipantRecord | None = None
        """The last record of its own. Of one job ``announced.seen_round <= latest.number``."""
        self.membership: Membership | None = None
        """The place in the round that it is in; None while it asks for one. Of one job
        ``membership.number <= latest.number``, and ``membership.id == announced.id``."""

    def observe(self, record: RoundRecord) -> bool:
        """Take a record in, unless it is older than ``latest``. Returns whether it was news."""
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
        """The record was deleted, with its job or by hand. A running round continues (I5), but no longer
        replaces members: no record says so."""
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
        """Leave the round, if this is a member of one, and ask for a place in the next."""
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

    def next_action(self) -> Enter | AnnounceAgain | Stop | KeepWaiting:
        """What an announced participant has to do now. Asking changes nothing.

        An announcement is for one round. A participant without a place in that round announces itself again
        at once: then it can be added as soon as this round ends.
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

    def take_action(self) -> Enter | AnnounceAgain | Stop | KeepWaiting:
        """The next action; if it has a place in a round, that becomes this participant's."""
        action = self.next_action()
        if isinstance(action, (Enter, AnnounceAgain)) and action.membership is not None:
            self.membership = action.membership
        return action

    @staticmethod
    def _group_rank(record: RoundRecord, own_id: str) -> int | None:
        """The rank in this round, as far as its record has it; None: not a member."""
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
        """The rank was read from the leader's store."""
        if self.membership is not None:
            self.membership = replace(self.membership, group_rank=rank)

    def drop_membership(self) -> None:
        """The leader's store does not know the announced id: announce again, for the next round."""
        self.membership = None

    def end_reason(self) -> str:
        """Why the round that this is a member of is over, or "" while the record does not say so.

        Without a record, in an unknown phase, and when the job is Complete, it continues: no absence breaks a
        running round (I5). But an agent that still asks for its rank when the job is Complete was not a
        member: all members have succeeded.
        """
        record, mine = self.latest, self.membership
        if record is None or mine is None:
            return ""
        if record.job_uid != mine.job_uid:
            return "the job was deleted and created again"
        if record.number > mine.number:
            return f"round {record.number} was formed"
        if record.number == mine.number:
            if record.nonce and record.nonce != mine.nonce:
                return f"another round {record.number} was formed: the record of this one was lost"
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
        """Whether the round that this is a member of runs on until the next pods of members that leave have
        joined."""
        record = self._own_record()
        return record is not None and record.phase == Phase.ACTIVE.value and record.replacing

    def round_hung(self) -> bool:
        """Whether the round that this is a member of was ended because it hung."""
        record = self._own_record()
        return (
            record is not None
            and record.phase in (Phase.BROKEN.value, Phase.CLOSED.value)
            and record.cause == HANG
        )

    def ended_for_who_leaves(self) -> bool:
        """Whether the last round has ended for a change that all members knew of: then it is no news that one
        of them has gone."""
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
