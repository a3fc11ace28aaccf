"""The records in the Leases: what the operator and the participants tell each other.

Everything in a Lease is untrusted input: each ``parse`` checks size, types and ranges, and
raises :class:`RecordError` with a sentence, never anything else. Unknown fields are ignored and an
unknown phase is kept as it is, so that old handlers meet new operators.

Records are written as compact JSON with keys in a fixed order, so that equal records are equal texts
and a repeated write is no change.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob.contract.fields import MAX_ID, Fields
from elasticjob.contract.fields import MAX_NUMBER as MAX_NUMBER
from elasticjob.contract.fields import RecordError as RecordError
from elasticjob.contract.fields import dump as dump_fields
from elasticjob.contract.limits import Limits
from elasticjob.contract.ranks import MAX_MEMBERS, dump_ranks

RECORD_VERSION = 1

LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS = 10.0, 60.0
"""How often the members of a running round renew their Leases when they have nothing to say."""

MAX_ROUND_BYTES = 65_536
INLINE_MEMBERS = 32
"""At most this many ids are in the round record itself. Every member reads it: a longer list, which only the
leader reads, would send each member the ids of all others with every change of the record."""
MAX_LIST_BYTES = 200_000
"""A list of 5,000 ids of 32 signs is 175 KB; all annotations of an object share 256 KiB."""
MAX_PARTICIPANT_BYTES = 4_096
MAX_REPORT_BYTES = 65_536
MAX_MESSAGE = 2_048
"""Characters kept of a message from a worker; the rest is in the pod's log."""
MAX_REASON = 200
"""Characters kept of the reason for which a worker started cold."""
MAX_ANNOUNCED_ID = 32
MAX_INT32 = 2**31 - 1
"""The largest rank, exit code or number of seconds: what the resource's schema holds."""
MAX_MILLISECONDS = 10 * 366 * 86_400_000
"""Ten years: no round trains for longer, and dates end in the year 9999."""

MAX_LOCAL_WORLD_SIZE = 99_999
_HOST = re.compile(r"[0-9A-Za-z_.:%-]+")
_PORT = re.compile(r"[0-9]{1,5}")


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


class AnnouncedState(str, enum.Enum):
    """What a participant says of itself."""

    JOINING = "Joining"
    SUCCEEDED = "Succeeded"
    LEAVING = "Leaving"


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


@dataclass(frozen=True)
class ParticipantRecord:
    """What an agent says of itself in the Lease with its pod's name.

    ``id`` is new for each announcement and fences the agent from all its former selves. It is for one round:
    for that after round ``seen_round`` of job ``seen_job_uid``, the newest whose record the agent had seen
    (0: none). So an id can be in one round at most, and used ids need not be remembered.
    ``from_job_uid`` and ``from_round`` say which round it comes from, or has succeeded in.
    ``endpoint`` is ``host:port`` of the store that it would serve as rank 0; the operator takes the
    host from the pod's status unless ``endpoint_fixed`` says that the user chose it (``--local-addr``).
    ``local_world_size`` is how many workers it starts (None: not known), ``open_files`` how many files the
    agent may open (0: not said), which limits what it can lead. ``oom_kills``: how many processes of its
    container had been killed for want of memory by then: a mark for which the container itself did not end.
    """

    id: str
    state: str
    endpoint: str = ""
    endpoint_fixed: bool = False
    from_job_uid: str = ""
    from_round: int = 0
    local_world_size: int | None = None
    seen_job_uid: str = ""
    seen_round: int = 0
    open_files: int = 0
    oom_kills: int = 0
    version: int = RECORD_VERSION

    def seen(self, job_uid: str) -> int:
        """The newest round of this job that the agent had seen when it announced itself."""
        return self.seen_round if self.seen_job_uid == job_uid else 0

    def dump(self) -> str:
        """The record as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "id": self.id,
                "state": self.state,
                "endpoint": self.endpoint,
                "endpointFixed": self.endpoint_fixed,
                "fromJobUID": self.from_job_uid,
                "fromRound": self.from_round,
                "localWorldSize": self.local_world_size,
                "seenJobUID": self.seen_job_uid,
                "seenRound": self.seen_round,
                "openFiles": self.open_files,
                "oomKills": self.oom_kills,
            }
        )

    @staticmethod
    def parse(text: str) -> ParticipantRecord:
        """Read a record. Raises RecordError."""
        fields = Fields.read("participant record", text, MAX_PARTICIPANT_BYTES)
        record = ParticipantRecord(
            version=fields.integer("version", 1),
            id=fields.token("id", MAX_PARTICIPANT_BYTES),
            state=fields.token("state", 32),
            endpoint=fields.string("endpoint", ""),
            endpoint_fixed=fields.boolean("endpointFixed"),
            from_job_uid=fields.token("fromJobUID", MAX_ID, ""),
            from_round=fields.integer("fromRound", 0, 0),
            local_world_size=fields.information("localWorldSize", 1, MAX_LOCAL_WORLD_SIZE),
            seen_job_uid=fields.token("seenJobUID", MAX_ID, ""),
            seen_round=fields.integer("seenRound", 0, 0),
            open_files=fields.integer("openFiles", 0, 0, MAX_INT32),
            oom_kills=fields.integer("oomKills", 0, 0, MAX_INT32),
        )
        if not 4 <= len(record.id) <= MAX_ANNOUNCED_ID:
            raise RecordError(f"participant record: id has {len(record.id)} characters, expected 4 to 32")
        if '"' in record.id or "\\" in record.id:  # in the record of a round it would stand as two
            raise RecordError("participant record: id has a character that JSON escapes")
        if record.state == AnnouncedState.JOINING.value:
            parse_endpoint(record.endpoint)
        return record


@dataclass(frozen=True)
class FailureReport:
    """A worker of this pod failed in round ``round_number``. Joining again does not touch it.

    ``group_rank`` is the agent's rank in the round, ``local_rank`` the worker's on that agent; ``exit_code``
    is negative for a signal, as in :mod:`subprocess`, and None where it could not be learnt.
    ``offset_milliseconds`` is how long after the round's barrier the first of this agent's workers ended, by
    the agent's own clock: all leave the barrier together, so the smallest of a round is its root
    failure and the others are echoes, and no two clocks are compared (I9). ``after_round_end``: the record
    had said already that the round was over when the worker ended; this explains, and is no cause.
    """

    round_number: int
    group_rank: int
    message: str = ""
    exit_code: int | None = None
    local_rank: int | None = None
    offset_milliseconds: int | None = None
    after_round_end: bool = False
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The report as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "round": self.round_number,
                "groupRank": self.group_rank,
                "exitCode": self.exit_code,
                "localRank": self.local_rank,
                "offsetMilliseconds": self.offset_milliseconds,
                "afterRoundEnd": self.after_round_end,
                "message": self.message[:MAX_MESSAGE],
            }
        )

    @staticmethod
    def parse(text: str) -> FailureReport:
        """Read a report. Raises RecordError."""
        fields = Fields.read("failure report", text, MAX_REPORT_BYTES)
        return FailureReport(
            version=fields.integer("version", 1),
            round_number=fields.integer("round", 0),
            group_rank=fields.integer("groupRank", 0, None, MAX_INT32),
            exit_code=fields.optional_integer("exitCode", -(2**31), MAX_INT32),
            local_rank=fields.optional_integer("localRank", 0, MAX_INT32),
            offset_milliseconds=fields.optional_integer("offsetMilliseconds", 0),
            after_round_end=fields.boolean("afterRoundEnd"),
            message=fields.string("message", "")[:MAX_MESSAGE],
        )


@dataclass(frozen=True)
class RoundReport:
    """What a member says of its round; ``nonce`` ties it to that round.

    From the leader: ``established``, ``unarrived_ranks`` (those that did not arrive in time),
    ``silent_ranks`` (those that sent no heartbeat) and ``hung`` (no step for ``hang_timeout``). From the
    others: ``leader_lost``, and ``connection_refused`` if the machine answers that the
    leader's port is closed now. ``message`` is the evidence in words; ``silent_milliseconds`` is how long the
    silence or the hang had lasted.
    """

    nonce: str
    established: bool = False
    unarrived_ranks: Sequence[int] = ()
    silent_ranks: Sequence[int] = ()
    leader_lost: bool = False
    connection_refused: bool = False
    hung: bool = False
    silent_milliseconds: int | None = None
    message: str = ""
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The report as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "nonce": self.nonce,
                "established": self.established,
                "unarrivedRanks": dump_ranks(self.unarrived_ranks),
                "silentRanks": dump_ranks(self.silent_ranks),
                "leaderLost": self.leader_lost,
                "connectionRefused": self.connection_refused,
                "hung": self.hung,
                "silentMilliseconds": self.silent_milliseconds,
                "message": self.message[:MAX_MESSAGE],
            }
        )

    @staticmethod
    def parse(text: str) -> RoundReport:
        """Read a report. Raises RecordError."""
        fields = Fields.read("round report", text, MAX_REPORT_BYTES)
        return RoundReport(
            version=fields.integer("version", 1),
            nonce=fields.token("nonce", MAX_ID),
            established=fields.boolean("established"),
            unarrived_ranks=fields.ranks("unarrivedRanks"),
            silent_ranks=fields.ranks("silentRanks"),
            leader_lost=fields.boolean("leaderLost"),
            connection_refused=fields.boolean("connectionRefused"),
            hung=fields.boolean("hung"),
            silent_milliseconds=fields.optional_integer("silentMilliseconds", 0),
            message=fields.string("message", "")[:MAX_MESSAGE],
        )


@dataclass(frozen=True)
class ProgressReport:
    """How far training has come, said by the leader in each renewal of its Lease; ``nonce`` ties it to a
    round.

    All by the leader's own clock, milliseconds: ``first_step_milliseconds`` from the round's barrier until
    the first report of a step, ``training_milliseconds`` from there until the step grew last.
    ``first_step`` is the step of that first report, ``step`` the highest so far.
    """

    nonce: str
    first_step: int
    step: int
    first_step_milliseconds: int
    training_milliseconds: int
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The report as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "nonce": self.nonce,
                "firstStep": self.first_step,
                "step": self.step,
                "firstStepMilliseconds": self.first_step_milliseconds,
                "trainingMilliseconds": self.training_milliseconds,
            }
        )

    @staticmethod
    def parse(text: str) -> ProgressReport:
        """Read a report. Raises RecordError."""
        fields = Fields.read("progress report", text, MAX_PARTICIPANT_BYTES)
        report = ProgressReport(
            version=fields.integer("version", 1),
            nonce=fields.token("nonce", MAX_ID),
            first_step=fields.integer("firstStep", 0),
            step=fields.integer("step", 0),
            first_step_milliseconds=fields.integer("firstStepMilliseconds", 0, None, MAX_MILLISECONDS),
            training_milliseconds=fields.integer("trainingMilliseconds", 0, None, MAX_MILLISECONDS),
        )
        if report.step < report.first_step:
            raise RecordError(f"progress report: step {report.step} is below firstStep {report.first_step}")
        return report


@dataclass(frozen=True)
class DrainReport:
    """Said by the leader: all workers of the round whose ``nonce`` this is have called ``should_stop``, so
    that it can be drained. ``stopped``: they have stopped at ``step`` and wait for the end of their round.
    Before that, where it takes a while: ``waiting_ranks`` are the members (group ranks, the first 64) whose
    workers have not stopped at ``step``, or with 0 have not said at which step they can."""

    nonce: str
    stopped: bool = False
    step: int = 0
    waiting_ranks: Sequence[int] = ()
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The report as one line of JSON."""
        waiting = {"waitingRanks": dump_ranks(self.waiting_ranks)} if self.waiting_ranks else {}
        return dump_fields(
            {
                "version": self.version,
                "nonce": self.nonce,
                "stopped": self.stopped,
                "step": self.step,
                **waiting,
            }
        )

    @staticmethod
    def parse(text: str) -> DrainReport:
        """Read a report. Raises RecordError."""
        fields = Fields.read("drain report", text, MAX_PARTICIPANT_BYTES)
        return DrainReport(
            version=fields.integer("version", 1),
            nonce=fields.token("nonce", MAX_ID),
            stopped=fields.boolean("stopped"),
            step=fields.integer("step", 0, 0),
            waiting_ranks=fields.ranks("waitingRanks"),
        )


@dataclass(frozen=True)
class StartsReport:
    """How many of this agent's workers started warm in the round whose ``nonce`` this is, and how many cold;
    ``cold_reason`` is why the first of those did. From the leader, ``preparing``: some member's interpreters
    for the next round are not ready yet, so that it would start later if it came now. Said only where warm
    workers are on, with the next write of the Lease that there is for another reason."""

    nonce: str
    warm: int = 0
    cold: int = 0
    cold_reason: str = ""
    preparing: bool = False
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The report as one line of JSON."""
        return dump_fields(
            {
                "version": self.version,
                "nonce": self.nonce,
                "warm": self.warm,
                "cold": self.cold,
                "coldReason": self.cold_reason[:MAX_REASON],
                **({"preparing": True} if self.preparing else {}),
            }
        )

    @staticmethod
    def parse(text: str) -> StartsReport:
        """Read a report. Raises RecordError."""
        fields = Fields.read("starts report", text, MAX_PARTICIPANT_BYTES)
        return StartsReport(
            version=fields.integer("version", 1),
            nonce=fields.token("nonce", MAX_ID),
            warm=fields.integer("warm", 0, 0, MAX_LOCAL_WORLD_SIZE),
            cold=fields.integer("cold", 0, 0, MAX_LOCAL_WORLD_SIZE),
            cold_reason=fields.string("coldReason", "")[:MAX_REASON],
            preparing=fields.boolean("preparing"),
        )


def parse_endpoint(text: str) -> tuple[str, int]:
    """Split ``host:port`` (an IPv6 host in brackets). Raises RecordError."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or len(host) > 255 or not _HOST.fullmatch(host) or not _PORT.fullmatch(port):
        raise RecordError(f"endpoint {text[:80]!r}: expected host:port")
    if not 0 < int(port) < 65536:
        raise RecordError(f"endpoint {text[:80]!r}: port must be from 1 to 65535")
    return host, int(port)


def format_endpoint(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint_at(record: ParticipantRecord, host: str) -> str:
    """The endpoint of a joining participant at the address that its pod's status gives, unless the user chose
    one.

    torch >= 2.14 compares addresses as strings: all members must spell the leader's address alike.
    """
    if record.endpoint_fixed or not host:
        return record.endpoint
    return format_endpoint(host, int(record.endpoint.rpartition(":")[2]))
