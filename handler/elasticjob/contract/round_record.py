"""What the operator publishes for the participants: the round, and its members if they are many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from elasticjob.contract.endpoint import parse_endpoint
from elasticjob.contract.fields import (
    MAX_ID,
    MAX_INT32,
    MAX_ROUND,
    Fields,
    RecordError,
)
from elasticjob.contract.limits import Limits
from elasticjob.contract.ranks import MAX_MEMBERS
from elasticjob.contract.record import FLAG, IDS, Codec, Record, number, omitted, token
from elasticjob.contract.str_enum import StrEnum

MAX_ROUND_BYTES = 65_536
INLINE_MEMBERS = 32
"""The most ids that the round record itself has. Every member reads it: with a longer list, each change would
send each member the ids of all others."""
MAX_LIST_BYTES = 200_000
"""A list of 5,000 ids of 32 characters is 175 KB; all annotations of an object share 256 KiB."""


class Phase(StrEnum):
    """The state of a round. It only changes to one further down; it may leave some out."""

    ACTIVE = "Active"
    DRAINING = "Draining"
    BROKEN = "Broken"
    CLOSED = "Closed"


_PHASE_ORDER = {
    Phase.ACTIVE.value: 1,
    Phase.DRAINING.value: 2,
    Phase.BROKEN.value: 3,
    Phase.CLOSED.value: 4,
}
RUNNING = (Phase.ACTIVE.value, Phase.DRAINING.value)
"""Phases of a round whose members train. In a Draining one they are asked to stop at a common step."""


class Outcome(StrEnum):
    """How a closed job ended."""

    COMPLETE = "Complete"
    FAILED = "Failed"


def _read_limits(found: Fields, key: str, _: object) -> Limits:
    inner = found.inner(key)
    return Limits.read(lambda key, least, default: inner.integer(key, least, default, MAX_INT32))


_LIMITS = Codec(_read_limits, Limits.fields)


@dataclass(frozen=True)
class RoundRecord(Record, what="round record", most_bytes=MAX_ROUND_BYTES):
    """The round, in the Lease ``<job>-round``. The operator is its only writer.

    Within a phase only ``waiting_message``, ``replacing``, ``out_of_memory``, ``memory_alone`` and
    ``wait_renew_period_seconds`` may change.
    """

    job_uid: str
    number: Annotated[int, number(0, MAX_ROUND, key="round")]
    """Grows by 1 with each round of the job; 0 with phase Broken is the record before the first round."""
    phase: str
    """A ``Phase``, or one of a newer operator."""
    nonce: str = ""
    """New for each round; reports carry it. Not "" while the round runs."""
    size: Annotated[int, number(0, MAX_MEMBERS)] = field(default=0, kw_only=True)
    """The number of members, 0 to MAX_MEMBERS; ``len(member_ids)`` if there are any."""
    member_ids: Annotated[tuple[str, ...], IDS] = ()
    """The ids in rank order, all different. () if ``size > INLINE_MEMBERS``: then they are in a
    ``MemberList``, and the leader's store tells each its rank."""
    leader_id: Annotated[str, token(MAX_ID)] = field(default="", kw_only=True)
    """The id of rank 0; ``member_ids[0]`` if there are any."""
    leader_endpoint: str = ""
    """``host:port`` of the TCPStore that rank 0 serves. Not "" while the round runs."""
    cause: str = ""
    """Why the round has ended: a ``Cause``, or one of a newer operator."""
    message: str = ""
    waiting_message: str = ""
    """The operator's sentence on what the next round waits for."""
    replacing: Annotated[bool, omitted(FLAG)] = False
    """The round runs on until the next pods of members that leave have joined; until then the preStop hooks
    of those wait."""
    outcome: str = ""
    """An ``Outcome`` if the phase is Closed."""
    wait_renew_period_seconds: Annotated[int, number(1, MAX_INT32)] = 5
    """How often a participant that waits renews its Lease; at least 1."""
    limits: Annotated[Limits, _LIMITS] = Limits()
    out_of_memory: Annotated[bool, omitted(FLAG)] = False
    """A container of the job was out of memory in one of the rounds that the status still lists."""
    memory_alone: Annotated[bool, omitted(FLAG)] = False
    """If the round drains: memory checkpoints of its last step are enough, since all members stay and those
    that join have memory for checkpoints, too."""

    def __post_init__(self) -> None:
        """Derive ``size`` and ``leader_id`` from the members."""
        if self.member_ids and not self.size:
            object.__setattr__(self, "size", len(self.member_ids))
        if self.member_ids and not self.leader_id:
            object.__setattr__(self, "leader_id", self.member_ids[0])

    @property
    def order(self) -> tuple[int, int]:
        """(number, phase): readers keep the maximum for each job UID. An unknown phase orders as 0."""
        return (self.number, _PHASE_ORDER.get(self.phase, 0))

    def ahead_of(self, other: RoundRecord) -> bool:
        """Whether this is of a later round or phase than the other, or of another round of that number."""
        return self.order > other.order or (self.order == other.order and self.nonce != other.nonce)

    def check(self) -> None:
        """The members are different, and a round that runs has them all. Raises RecordError."""
        if len(set(self.member_ids)) != len(self.member_ids):
            raise RecordError("round record: an id appears twice in memberIDs")
        if self.member_ids and (self.size, self.leader_id) != (
            len(self.member_ids),
            self.member_ids[0],
        ):
            raise RecordError("round record: size and leaderID do not match memberIDs")
        if self.phase in RUNNING and not (
            self.size and self.leader_id and self.nonce and self.leader_endpoint
        ):
            raise RecordError(
                f"round record: a round that is {self.phase} needs size, leaderID, nonce and leaderEndpoint"
            )
        if self.leader_endpoint:
            parse_endpoint(self.leader_endpoint)


@dataclass(frozen=True)
class MemberList(Record, what="member list", most_bytes=MAX_LIST_BYTES):
    """The members' ids in rank order, if they are too many for the round record: in the Lease
    ``<job>.members-round``, which is written before that of the round."""

    job_uid: str
    number: Annotated[int, number(1, key="round")]
    nonce: str
    member_ids: Annotated[tuple[str, ...], IDS]

    @property
    def head(self) -> tuple[str, int, str]:
        """The round that it belongs to."""
        return (self.job_uid, self.number, self.nonce)

    def check(self) -> None:
        """The members are different. Raises RecordError."""
        if len(set(self.member_ids)) != len(self.member_ids):
            raise RecordError("member list: an id appears twice in memberIDs")
