"""What the operator tells the participants: the round, and its members where they are many."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from elasticjob.contract.endpoint import parse_endpoint
from elasticjob.contract.fields import MAX_ID, MAX_INT32, RECORD_VERSION, Fields, RecordError
from elasticjob.contract.fields import dump as dump_fields
from elasticjob.contract.limits import Limits
from elasticjob.contract.ranks import MAX_MEMBERS

MAX_ROUND_BYTES = 65_536
INLINE_MEMBERS = 32
"""At most this many ids are in the round record itself. Every member reads it: a longer list, which only the
leader reads, would send each member the ids of all others with every change of the record."""
MAX_LIST_BYTES = 200_000
"""A list of 5,000 ids of 32 signs is 175 KB; all annotations of an object share 256 KiB."""


class Phase(str, enum.Enum):
    """Where a round stands. ``order`` grows within a round and never goes back."""

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
"""Phases of a round whose members train. In one that drains they are asked to stop at a common step."""


class Outcome(str, enum.Enum):
    """How a closed job ended."""

    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True)
class RoundRecord:
    """The round, as the operator publishes it in the Lease ``<job>-round``.

    ``size`` is the number of members, ``leader_id`` the id of rank 0 and ``leader_endpoint`` ``host:port`` of
    the TCPStore that it serves. ``member_ids`` are the ids in rank order if they are few; else they are in a
    ``MemberList``, and the leader's store tells each its rank. ``number`` 0 with phase Broken is the record
    before the first round. ``waiting_message`` is the operator's sentence on what the next round waits for.
    ``replacing``: a running round goes on until the next pods of members that leave have joined; until then
    the preStop hooks of those wait. ``out_of_memory``: a container of the job was, in one of the rounds that
    the status still lists. Only these three may change without a new phase.
    """

    job_uid: str
    number: int
    phase: str
    nonce: str = ""
    member_ids: tuple[str, ...] = ()
    leader_endpoint: str = ""
    cause: str = ""
    message: str = ""
    waiting_message: str = ""
    replacing: bool = False
    outcome: str = ""
    wait_renew_period_seconds: int = 5
    limits: Limits = Limits()
    size: int = 0
    leader_id: str = ""
    out_of_memory: bool = False
    version: int = RECORD_VERSION

    def __post_init__(self) -> None:
        """What the members tell need not be said again."""
        if self.member_ids and not self.size:
            object.__setattr__(self, "size", len(self.member_ids))
        if self.member_ids and not self.leader_id:
            object.__setattr__(self, "leader_id", self.member_ids[0])

    @property
    def order(self) -> tuple[int, int]:
        """(number, phase): readers keep the maximum for each job UID. An unknown phase orders as 0."""
        return (self.number, _PHASE_ORDER.get(self.phase, 0))

    def ahead_of(self, other: RoundRecord) -> bool:
        """Whether this says more than the other knew: a later round or phase, or another such round."""
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
    """The members' ids in rank order, where they are too many for the round record: in the Lease
    ``<job>.members-round``, which is written before that of the round. ``nonce`` ties it to its round."""

    job_uid: str
    number: int
    nonce: str
    member_ids: tuple[str, ...]
    version: int = RECORD_VERSION

    @property
    def head(self) -> tuple[str, int, str]:
        """Which round's it is."""
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
