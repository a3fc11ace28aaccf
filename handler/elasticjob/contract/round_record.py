"""What the operator publishes for the participants: the round, and its members if they are many."""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.contract.endpoint import parse_endpoint
from elasticjob.contract.fields import (
    MAX_ID,
    MAX_INT32,
    RECORD_VERSION,
    Fields,
    RecordError,
    dump_fields,
)
from elasticjob.contract.limits import Limits
from elasticjob.contract.ranks import MAX_MEMBERS
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


@dataclass(frozen=True)
class RoundRecord:
    """The round, in the Lease ``<job>-round``. The operator is its only writer.

    Within a phase only ``waiting_message``, ``replacing``, ``out_of_memory`` and
    ``wait_renew_period_seconds`` may change.
    """

    job_uid: str
    number: int
    """Grows by 1 with each round of the job; 0 with phase Broken is the record before the first round."""
    phase: str
    """A ``Phase``, or one of a newer operator."""
    nonce: str = ""
    """New for each round; reports carry it. Not "" while the round runs."""
    member_ids: tuple[str, ...] = ()
    """The ids in rank order, all different. () if ``size > INLINE_MEMBERS``: then they are in a
    ``MemberList``, and the leader's store tells each its rank."""
    leader_endpoint: str = ""
    """``host:port`` of the TCPStore that rank 0 serves. Not "" while the round runs."""
    cause: str = ""
    """Why the round has ended: a ``Cause``, or one of a newer operator."""
    message: str = ""
    waiting_message: str = ""
    """The operator's sentence on what the next round waits for."""
    replacing: bool = False
    """The round runs on until the next pods of members that leave have joined; until then the preStop hooks
    of those wait."""
    outcome: str = ""
    """An ``Outcome`` if the phase is Closed."""
    wait_renew_period_seconds: int = 5
    """How often a participant that waits renews its Lease; at least 1."""
    limits: Limits = Limits()
    size: int = 0
    """The number of members, 0 to MAX_MEMBERS; ``len(member_ids)`` if there are any."""
    leader_id: str = ""
    """The id of rank 0; ``member_ids[0]`` if there are any."""
    out_of_memory: bool = False
    """A container of the job was out of memory in one of the rounds that the status still lists."""
    version: int = RECORD_VERSION

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

    def dump(self) -> str:
        """The record as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "jobUID": self.job_uid,
                "round": self.number,
                "phase": self.phase,
                "nonce": self.nonce,
                "size": self.size,
                "memberIDs": list(self.member_ids),
                "leaderID": self.leader_id,
                "leaderEndpoint": self.leader_endpoint,
                "cause": self.cause,
                "message": self.message,
                "waitingMessage": self.waiting_message,
                "outcome": self.outcome,
                "waitRenewPeriodSeconds": self.wait_renew_period_seconds,
                "limits": self.limits.fields(),
                **({"replacing": True} if self.replacing else {}),
                **({"outOfMemory": True} if self.out_of_memory else {}),
            }
        )

    @staticmethod
    def parse(text: str) -> RoundRecord:
        """Read a record. Raises RecordError."""
        fields = Fields.read("round record", text, MAX_ROUND_BYTES)
        limits = fields.inner("limits")
        record = RoundRecord(
            version=fields.integer("version", 1),
            job_uid=fields.string("jobUID"),
            number=fields.integer("round", 0),
            phase=fields.string("phase"),
            nonce=fields.string("nonce", ""),
            member_ids=fields.strings("memberIDs"),
            leader_endpoint=fields.string("leaderEndpoint", ""),
            cause=fields.string("cause", ""),
            message=fields.string("message", ""),
            waiting_message=fields.string("waitingMessage", ""),
            replacing=fields.boolean("replacing"),
            outcome=fields.string("outcome", ""),
            wait_renew_period_seconds=fields.integer("waitRenewPeriodSeconds", 1, 5, MAX_INT32),
            limits=Limits.read(lambda key, least, default: limits.integer(key, least, default, MAX_INT32)),
            size=fields.integer("size", 0, 0, MAX_MEMBERS),
            leader_id=fields.token("leaderID", MAX_ID, ""),
            out_of_memory=fields.boolean("outOfMemory"),
        )
        if len(set(record.member_ids)) != len(record.member_ids):
            raise RecordError("round record: an id appears twice in memberIDs")
        if record.member_ids and (record.size, record.leader_id) != (
            len(record.member_ids),
            record.member_ids[0],
        ):
            raise RecordError("round record: size and leaderID do not match memberIDs")
        if record.phase in RUNNING and not (
            record.size and record.leader_id and record.nonce and record.leader_endpoint
        ):
            raise RecordError(
                f"round record: a round that is {record.phase} needs size, leaderID, nonce and leaderEndpoint"
            )
        if record.leader_endpoint:
            parse_endpoint(record.leader_endpoint)
        return record


@dataclass(frozen=True)
class MemberList:
    """The members' ids in rank order, if they are too many for the round record: in the Lease
    ``<job>.members-round``, which is written before that of the round."""

    job_uid: str
    number: int
    nonce: str
    member_ids: tuple[str, ...]
    version: int = RECORD_VERSION

    @property
    def head(self) -> tuple[str, int, str]:
        """The round that it belongs to."""
        return (self.job_uid, self.number, self.nonce)

    def dump(self) -> str:
        """The list as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "jobUID": self.job_uid,
                "round": self.number,
                "nonce": self.nonce,
                "memberIDs": list(self.member_ids),
            }
        )

    @staticmethod
    def parse(text: str) -> MemberList:
        """Read a list. Raises RecordError."""
        fields = Fields.read("member list", text, MAX_LIST_BYTES)
        found = MemberList(
            version=fields.integer("version", 1),
            job_uid=fields.string("jobUID"),
            number=fields.integer("round", 1),
            nonce=fields.string("nonce"),
            member_ids=fields.strings("memberIDs"),
        )
        if len(set(found.member_ids)) != len(found.member_ids):
            raise RecordError("member list: an id appears twice in memberIDs")
        return found
