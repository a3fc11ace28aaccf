"""What a member of a round reports of it in its pod's Lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob.contract.fields import (
    MAX_ID,
    MAX_INT32,
    MAX_LOCAL_WORLD_SIZE,
    MAX_PARTICIPANT_BYTES,
    RECORD_VERSION,
    Fields,
    RecordError,
)
from elasticjob.contract.fields import dump as dump_fields
from elasticjob.contract.ranks import dump_ranks

MAX_REPORT_BYTES = 65_536
MAX_MESSAGE = 2_048
"""Characters kept of a message from a worker; the rest is in the pod's log."""
MAX_REASON = 200
"""Characters kept of the reason for which a worker started cold."""
MAX_MILLISECONDS = 10 * 366 * 86_400_000
"""Ten years: no round trains for longer, and dates end in the year 9999."""


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
