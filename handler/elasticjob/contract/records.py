"""The records in the Leases: what the operator and the participants tell each other.

Everything in a Lease is input from somebody else: each ``parse`` checks size, types and ranges, and
raises :class:`RecordError` with a sentence, never anything else. Unknown fields are ignored and an
unknown phase is kept as it is, so that old handlers meet new operators.

Records are written as compact JSON with keys in a fixed order, so that equal records are equal texts
and a repeated write is no change.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass, replace

from elasticjob.contract.ranks import dump_ranks, parse_ranks
from elasticjob.contract.text import is_token

RECORD_VERSION = 1

LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS = 10.0, 60.0
"""How often the members of a running round renew their Leases when they have nothing to say."""

MAX_ROUND_BYTES = 200_000
"""A round record of 10,000 members is 150 KB; all annotations of an object share 256 KiB."""
MAX_PARTICIPANT_BYTES = 4_096
MAX_REPORT_BYTES = 65_536
MAX_MESSAGE = 2_048
"""Characters kept of a message from a worker; the rest is in the pod's log."""
MAX_ID = 64
MAX_ANNOUNCED_ID = 32
MAX_NUMBER = 2**53 - 1
"""The largest whole number that every reader of JSON keeps as it is."""
MAX_INT32 = 2**31 - 1
"""The largest rank, exit code or number of seconds: what the resource's schema holds."""
MAX_MILLISECONDS = 10 * 366 * 86_400_000
"""Ten years: no round trains for longer, and dates end in the year 9999."""

_NPROC = re.compile(r"[a-z]{1,16}|[0-9]{1,5}")
_HOST = re.compile(r"[0-9A-Za-z_.:%-]+")
_PORT = re.compile(r"[0-9]{1,5}")


class RecordError(ValueError):
    """A record that can't be used. Its text names what was found and what was expected."""


class Phase(str, enum.Enum):
    """Where a round stands. ``order`` grows within a round and never goes back."""

    ACTIVE = "Active"
    DRAINING = "Draining"
    BROKEN = "Broken"
    CLOSED = "Closed"


_PHASE_ORDER = {Phase.ACTIVE.value: 1, Phase.DRAINING.value: 2, Phase.BROKEN.value: 3, Phase.CLOSED.value: 4}


class State(str, enum.Enum):
    """What a participant says of itself."""

    JOINING = "Joining"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LEAVING = "Leaving"


class Outcome(str, enum.Enum):
    """How a closed job ended."""

    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True)
class RoundRecord:
    """The round, as the operator publishes it in the Lease ``<job>-round``.

    ``members`` are participants' ids in rank order; ``leader`` is ``host:port`` of the TCPStore that
    rank 0 serves. ``number`` 0 with phase Broken is the record before the first round. ``waiting`` is the
    operator's sentence on what the next round waits for; it alone may change without a new phase.
    Times are seconds; ``hang_timeout_seconds`` 0 means that nobody judges progress.
    """

    job_uid: str
    number: int
    phase: str
    nonce: str = ""
    members: tuple[str, ...] = ()
    leader: str = ""
    cause: str = ""
    message: str = ""
    waiting: str = ""
    refused: tuple[str, ...] = ()
    outcome: str = ""
    wait_renew_seconds: int = 5
    establish_timeout_seconds: int = 15
    heartbeat_timeout_seconds: int = 10
    hang_timeout_seconds: int = 0
    version: int = RECORD_VERSION

    @property
    def order(self) -> tuple[int, int]:
        """(number, phase): readers keep the maximum for each job UID. An unknown phase orders as 0."""
        return (self.number, _PHASE_ORDER.get(self.phase, 0))

    def ahead_of(self, other: RoundRecord) -> bool:
        """Whether this says more than the other knew: a later round or phase, or another such round."""
        return self.order > other.order or (self.order == other.order and self.nonce != other.nonce)

    def dump(self) -> str:
        """The record as one line of JSON."""
        return _dump(
            {
                "version": self.version,
                "jobUID": self.job_uid,
                "round": self.number,
                "phase": self.phase,
                "nonce": self.nonce,
                "members": list(self.members),
                "leader": self.leader,
                "cause": self.cause,
                "message": self.message,
                "waiting": self.waiting,
                "refused": list(self.refused),
                "outcome": self.outcome,
                "waitRenewSeconds": self.wait_renew_seconds,
                "establishTimeoutSeconds": self.establish_timeout_seconds,
                "heartbeatTimeoutSeconds": self.heartbeat_timeout_seconds,
                "hangTimeoutSeconds": self.hang_timeout_seconds,
            }
        )

    @staticmethod
    def parse(text: str) -> RoundRecord:
        """Read a record. Raises RecordError."""
        fields = _Fields("round record", text, MAX_ROUND_BYTES)
        record = RoundRecord(
            version=fields.integer("version", 1),
            job_uid=fields.string("jobUID"),
            number=fields.integer("round", 0),
            phase=fields.string("phase"),
            nonce=fields.string("nonce", ""),
            members=fields.strings("members"),
            leader=fields.string("leader", ""),
            cause=fields.string("cause", ""),
            message=fields.string("message", ""),
            waiting=fields.string("waiting", ""),
            refused=fields.strings("refused"),
            outcome=fields.string("outcome", ""),
            wait_renew_seconds=fields.integer("waitRenewSeconds", 1, 5, MAX_INT32),
            establish_timeout_seconds=fields.integer("establishTimeoutSeconds", 1, 15, MAX_INT32),
            heartbeat_timeout_seconds=fields.integer("heartbeatTimeoutSeconds", 1, 10, MAX_INT32),
            hang_timeout_seconds=fields.integer("hangTimeoutSeconds", 0, 0, MAX_INT32),
        )
        if len(set(record.members)) != len(record.members):
            raise RecordError("round record: an id stands twice in members")
        if record.phase == Phase.ACTIVE.value and (
            not record.members or not record.nonce or not record.leader
        ):
            raise RecordError("round record: an Active round needs members, nonce and leader")
        if record.leader:
            parse_endpoint(record.leader)
        return record


@dataclass(frozen=True)
class ParticipantRecord:
    """What an agent says of itself in the Lease that bears its pod's name.

    ``id`` is new for each announcement and fences the agent from all its former selves.
    ``last_job_uid`` and ``last_round`` say which round it comes from, or has succeeded in.
    ``endpoint`` is ``host:port`` of the store that it would serve as rank 0; the operator takes the
    host from the pod's status unless ``local_addr`` says that the user chose it (``--local-addr``).
    """

    id: str
    state: str
    endpoint: str = ""
    local_addr: bool = False
    last_job_uid: str = ""
    last_round: int = 0
    nproc: str = ""
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The record as one line of JSON."""
        return _dump(
            {
                "version": self.version,
                "id": self.id,
                "state": self.state,
                "endpoint": self.endpoint,
                "localAddr": self.local_addr,
                "lastJobUID": self.last_job_uid,
                "lastRound": self.last_round,
                "nproc": self.nproc,
            }
        )

    @staticmethod
    def parse(text: str) -> ParticipantRecord:
        """Read a record. Raises RecordError."""
        fields = _Fields("participant record", text, MAX_PARTICIPANT_BYTES)
        record = ParticipantRecord(
            version=fields.integer("version", 1),
            id=fields.token("id", MAX_PARTICIPANT_BYTES),
            state=fields.token("state", 32),
            endpoint=fields.string("endpoint", ""),
            local_addr=fields.boolean("localAddr"),
            last_job_uid=fields.token("lastJobUID", MAX_ID, ""),
            last_round=fields.integer("lastRound", 0, 0),
            nproc=fields.string("nproc", ""),
        )
        if not 4 <= len(record.id) <= MAX_ANNOUNCED_ID:
            raise RecordError(f"participant record: id has {len(record.id)} characters, expected 4 to 32")
        if '"' in record.id or "\\" in record.id:  # in the record of a round it would stand as two
            raise RecordError("participant record: id has a sign that JSON escapes")
        if not _NPROC.fullmatch(record.nproc):
            record = replace(record, nproc="")  # information: what is none is not known
        if record.state == State.JOINING.value:
            parse_endpoint(record.endpoint)
        return record


@dataclass(frozen=True)
class FailureReport:
    """A worker of this pod failed in round ``number``. Joining again does not touch it.

    ``rank`` is the agent's rank in the round (torch's group rank), ``local_rank`` the worker's on that agent;
    ``exit_code`` is negative for a signal, as in :mod:`subprocess`, and None where it could not be learnt.
    ``milliseconds`` is how long after the round's barrier the first of this agent's workers ended, by the
    agent's own clock: everybody leaves the barrier together, so the smallest of a round is its root failure
    and the others are echoes, and no two clocks are compared (I9). ``late``: the record had said already
    that the round was over when the worker ended; this explains, and is no cause.
    """

    number: int
    rank: int
    message: str = ""
    exit_code: int | None = None
    local_rank: int | None = None
    milliseconds: int | None = None
    late: bool = False
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The report as one line of JSON."""
        return _dump(
            {
                "version": self.version,
                "round": self.number,
                "rank": self.rank,
                "exitCode": self.exit_code,
                "localRank": self.local_rank,
                "milliseconds": self.milliseconds,
                "late": self.late,
                "message": self.message[:MAX_MESSAGE],
            }
        )

    @staticmethod
    def parse(text: str) -> FailureReport:
        """Read a report. Raises RecordError."""
        fields = _Fields("failure report", text, MAX_REPORT_BYTES)
        return FailureReport(
            version=fields.integer("version", 1),
            number=fields.integer("round", 0),
            rank=fields.integer("rank", 0, None, MAX_INT32),
            exit_code=fields.optional_integer("exitCode", -(2**31), MAX_INT32),
            local_rank=fields.optional_integer("localRank", 0, MAX_INT32),
            milliseconds=fields.optional_integer("milliseconds", 0),
            late=fields.boolean("late"),
            message=fields.string("message", "")[:MAX_MESSAGE],
        )


@dataclass(frozen=True)
class RoundReport:
    """What a member says of its round; ``nonce`` ties it to that round.

    From the leader: ``established``, ``missing`` (ranks that did not arrive in time), ``silent`` (ranks that
    stopped to beat) and ``hung`` (no step for ``hang_timeout_seconds``). From the others: ``leader_lost``,
    and ``refused`` if the machine answers that nobody listens on the leader's port any more. ``message`` is
    the evidence in words; ``silent_milliseconds`` is how long the silence or the hang had lasted.
    """

    nonce: str
    established: bool = False
    missing: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    leader_lost: bool = False
    refused: bool = False
    hung: bool = False
    silent_milliseconds: int | None = None
    message: str = ""
    version: int = RECORD_VERSION

    def dump(self) -> str:
        """The report as one line of JSON."""
        return _dump(
            {
                "version": self.version,
                "nonce": self.nonce,
                "established": self.established,
                "missing": dump_ranks(self.missing),
                "silent": dump_ranks(self.silent),
                "leaderLost": self.leader_lost,
                "refused": self.refused,
                "hung": self.hung,
                "silentMilliseconds": self.silent_milliseconds,
                "message": self.message[:MAX_MESSAGE],
            }
        )

    @staticmethod
    def parse(text: str) -> RoundReport:
        """Read a report. Raises RecordError."""
        fields = _Fields("round report", text, MAX_REPORT_BYTES)
        return RoundReport(
            version=fields.integer("version", 1),
            nonce=fields.string("nonce"),
            established=fields.boolean("established"),
            missing=fields.ranks("missing"),
            silent=fields.ranks("silent"),
            leader_lost=fields.boolean("leaderLost"),
            refused=fields.boolean("refused"),
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
        return _dump(
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
        fields = _Fields("progress report", text, MAX_PARTICIPANT_BYTES)
        report = ProgressReport(
            version=fields.integer("version", 1),
            nonce=fields.string("nonce"),
            first_step=fields.integer("firstStep", 0),
            step=fields.integer("step", 0),
            first_step_milliseconds=fields.integer("firstStepMilliseconds", 0, None, MAX_MILLISECONDS),
            training_milliseconds=fields.integer("trainingMilliseconds", 0, None, MAX_MILLISECONDS),
        )
        if report.step < report.first_step:
            raise RecordError(f"progress report: step {report.step} is below firstStep {report.first_step}")
        return report


def parse_endpoint(text: str) -> tuple[str, int]:
    """Split ``host:port`` (an IPv6 host in brackets). Raises RecordError."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or len(host) > 255 or not _HOST.fullmatch(host) or not _PORT.fullmatch(port):
        raise RecordError(f"endpoint {text[:80]!r}: expected host:port")
    if not 0 < int(port) < 65536:
        raise RecordError(f"endpoint {text[:80]!r}: port is not within 1 to 65535")
    return host, int(port)


def format_endpoint(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def with_host(record: ParticipantRecord, host: str) -> ParticipantRecord:
    """The record with the address that the pod's status gives, unless the user chose one.

    torch >= 2.14 compares addresses as strings: everybody must spell the leader's address alike.
    """
    if record.local_addr or not host:
        return record
    return replace(record, endpoint=format_endpoint(host, parse_endpoint(record.endpoint)[1]))


def _dump(fields: dict[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


class _Fields:
    """Typed access to the fields of one JSON object."""

    def __init__(self, what: str, text: str, limit: int) -> None:
        self.what = what
        if len(text.encode("utf-8", "surrogatepass")) > limit:
            raise RecordError(f"{what}: longer than {limit} bytes")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{what}: not JSON ({error})") from None
        if not isinstance(fields, dict):
            raise RecordError(f"{what}: expected a JSON object, found {type(fields).__name__}")
        self.fields: dict[str, object] = fields

    def _wrong(self, key: str, expected: str) -> RecordError:
        found = json.dumps(self.fields.get(key))[:80]
        return RecordError(f"{self.what}: {key} is {found}, expected {expected}")

    def string(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._wrong(key, "a string")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise self._wrong(key, "text that UTF-8 can carry") from None
        return value

    def token(self, key: str, longest: int, default: str | None = None) -> str:
        value = self.string(key, default)
        if value and not is_token(value, longest):
            raise self._wrong(key, f"at most {longest} letters, digits or signs of ASCII")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(item, str) and is_token(item, MAX_ID) for item in value
        ):
            raise self._wrong(key, f"a list of ids of at most {MAX_ID} letters, digits or signs of ASCII")
        return tuple(value)

    def ranks(self, key: str) -> tuple[int, ...]:
        try:
            return parse_ranks(self.string(key, ""))
        except ValueError as error:
            if isinstance(error, RecordError):
                raise
            raise self._wrong(key, f"ranges of ranks ({error})") from None

    def boolean(self, key: str) -> bool:
        value = self.fields.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def integer(self, key: str, minimum: int, default: int | None = None, maximum: int = MAX_NUMBER) -> int:
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self._wrong(key, f"a whole number from {minimum} to {maximum}")
        return value

    def optional_integer(self, key: str, minimum: int, maximum: int = MAX_NUMBER) -> int | None:
        if self.fields.get(key) is None:
            return None
        return self.integer(key, minimum, None, maximum)
