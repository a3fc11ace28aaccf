"""The participant's side of the protocol, without I/O: records in, decisions out.

The shell (``elasticjob.handler``) feeds every round record that it sees to :meth:`Participant.observe`
and asks what to do. Nothing here blocks, writes, or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticjob.contract.records import Outcome, ParticipantRecord, Phase, RoundRecord, State

HANG = "Hang"
"""The cause of a round that did not get on any more, as the record names it."""


@dataclass(frozen=True)
class Membership:
    """A place in one round. ``rank`` is the position in the member list, 0 leads."""

    job_uid: str
    number: int
    nonce: str
    id: str
    rank: int
    members: tuple[str, ...]
    leader: str
    establish_timeout: float
    heartbeat_timeout: float
    hang_timeout: float = 0.0

    @property
    def size(self) -> int:
        """How many members the round has (torch's group world size)."""
        return len(self.members)

    @property
    def prefix(self) -> str:
        """The prefix of the round's keys in the leader's store: no other round can touch them."""
        return f"elasticjob/{self.job_uid}/{self.number}/{self.nonce}"


@dataclass(frozen=True)
class Enter:
    """The announced id is a member: establish this round."""

    membership: Membership


@dataclass(frozen=True)
class AnnounceAgain:
    """The announced id will never be a member: take a new one."""

    why: str


@dataclass(frozen=True)
class Stop:
    """The job is over. ``complete``: well, so leave quietly; else the message says why."""

    complete: bool
    message: str


@dataclass(frozen=True)
class Wait:
    """Go on waiting; ``what`` is the operator's sentence on what the next round waits for."""

    what: str


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

        Records of one job only move forward in (round, phase); the waiting sentence may change alone.
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

    def announce(self, new_id: str, endpoint: str, local_addr: bool, nproc: str) -> ParticipantRecord:
        """Leave whatever round this was a member of and ask for a place in the next."""
        last = self.membership
        if last is None and self.announced is not None:
            last_uid, last_round = self.announced.last_job_uid, self.announced.last_round
        else:
            last_uid, last_round = (last.job_uid, last.number) if last is not None else ("", 0)
        self.membership = None
        self.announced = ParticipantRecord(
            new_id, State.JOINING.value, endpoint, local_addr, last_uid, last_round, nproc
        )
        return self.announced

    def next_step(self) -> Enter | AnnounceAgain | Stop | Wait:
        """What an announced participant shall do now."""
        record, announced = self.latest, self.announced
        if record is None or announced is None:
            return Wait("")
        if record.phase == Phase.CLOSED.value:
            return Stop(record.outcome == Outcome.COMPLETE.value, record.message)
        if announced.id in record.refused:
            return AnnounceAgain("the operator had given up on the announcement before")
        if announced.id not in record.members:
            return Wait(record.waiting)
        if record.phase not in (Phase.ACTIVE.value, Phase.DRAINING.value):
            if record.phase == Phase.BROKEN.value:
                self.membership = self._place(record, announced)
                return AnnounceAgain(f"round {record.number} was over before it was entered")
            return Wait(record.waiting)
        self.membership = self._place(record, announced)
        return Enter(self.membership)

    @staticmethod
    def _place(record: RoundRecord, announced: ParticipantRecord) -> Membership:
        return Membership(
            job_uid=record.job_uid,
            number=record.number,
            nonce=record.nonce,
            id=announced.id,
            rank=record.members.index(announced.id),
            members=record.members,
            leader=record.leader,
            establish_timeout=record.establish_timeout_seconds,
            heartbeat_timeout=record.heartbeat_timeout_seconds,
            hang_timeout=record.hang_timeout_seconds,
        )

    def over(self) -> str:
        """Why the round that this is a member of is over, or "" while the record does not say so.

        No record, an unknown phase, Draining, and a job that has closed well all change nothing: a
        running round is broken by nobody's absence (I5).
        """
        record, mine = self.latest, self.membership
        if record is None or mine is None:
            return ""
        if record.job_uid != mine.job_uid:
            return "the job was deleted and made again"
        if record.number > mine.number:
            return f"round {record.number} is there"
        if record.number == mine.number:
            if record.phase == Phase.BROKEN.value:
                return f"{record.cause}: {record.message}" if record.cause else "the round is broken"
            if record.phase == Phase.CLOSED.value and record.outcome != Outcome.COMPLETE.value:
                return f"the job has ended: {record.message}"
        return ""

    def hung(self) -> bool:
        """Whether the round that this is a member of was ended because it did not get on any more."""
        record, mine = self.latest, self.membership
        return (
            record is not None
            and mine is not None
            and (record.job_uid, record.number) == (mine.job_uid, mine.number)
            and record.phase in (Phase.BROKEN.value, Phase.CLOSED.value)
            and record.cause == HANG
        )

    def closed_well(self) -> bool:
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
            announced, state=State.SUCCEEDED.value, last_job_uid=mine.job_uid, last_round=mine.number
        )
        return self.announced

    def leaving(self) -> ParticipantRecord | None:
        """The record that says that this agent ends on a signal."""
        announced = self.announced
        if announced is None or announced.state == State.SUCCEEDED.value:
            return None
        self.announced = replace(announced, state=State.LEAVING.value)
        return self.announced
