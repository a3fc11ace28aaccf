"""What a member of a round reports of that round in its pod's Lease: one annotation for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticjob.contract.fields import (
    MAX_ID,
    MAX_INT32,
    MAX_LOCAL_WORLD_SIZE,
    MAX_SMALL_RECORD_BYTES,
    RECORD_VERSION,
    Fields,
    RecordError,
    dump_fields,
)
from elasticjob.contract.ranks import dump_ranks

MAX_REPORT_BYTES = 65_536
MAX_MESSAGE = 2_048
"""Characters kept of a message from a worker; the rest is in the pod's log."""
MAX_REASON = 200
"""Characters kept of the reason why a worker started cold."""
MAX_MILLISECONDS = 10 * 366 * 86_400_000
"""Ten years: no round trains for longer, and dates end in the year 9999."""


@dataclass(frozen=True)
class FailureReport:
    """A worker of this pod failed in round ``round_number``. It stays when the agent joins again."""

    round_number: int
    group_rank: int
    """The agent's rank in the round."""
    message: str = ""
    exit_code: int | None = None
    """Negative for a signal, as in :mod:`subprocess`; None: it could not be learnt."""
    local_rank: int | None = None
    """The worker's rank on that agent."""
    offset_milliseconds: int | None = None
    """The time from the round's barrier to the end of the first of this agent's workers, by its own clock.
    All leave the barrier together: the smallest of a round is its root failure, the others are echoes, and no
    two clocks are compared (I9)."""
    after_round_end: bool = False
    """When the worker ended, the record already said that the round was over: this explains its end, and is
    no cause."""
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
    """What a member says of the round with this ``nonce``."""

    nonce: str
    established: bool = False
    """All members have reached the leader (said by the leader)."""
    unarrived_ranks: Sequence[int] = ()
    """Members that did not arrive in time (said by the leader)."""
    silent_ranks: Sequence[int] = ()
    """Members that sent no heartbeat (said by the leader)."""
    leader_lost: bool = False
    """This member can't reach the leader."""
    connection_refused: bool = False
    """The leader's machine answers that the port is closed; only with ``leader_lost``."""
    hung: bool = False
    """No step for ``hang_timeout`` (said by the leader)."""
    silent_milliseconds: int | None = None
    """How long the silence or the hang had lasted."""
    message: str = ""
    """The evidence in words."""
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
    """How far training has come in the round with this ``nonce``: from the leader, by its own clock, in each
    renewal of its Lease."""

    nonce: str
    first_step: int
    """The step of the first report."""
    step: int
    """The highest so far: ``first_step <= step``."""
    first_step_milliseconds: int
    """The time from the round's barrier to the first report."""
    training_milliseconds: int
    """The time from the first report until the step last grew."""
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
        fields = Fields.read("progress report", text, MAX_SMALL_RECORD_BYTES)
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
    """The leader reports that all workers of the round with this ``nonce`` have called ``should_stop``, so
    that it can be drained."""

    nonce: str
    stopped: bool = False
    """All have stopped at ``step`` and wait for the end of their round."""
    step: int = 0
    """The step at which they stop; 0: not agreed."""
    waiting_ranks: Sequence[int] = ()
    """If it takes a while: group ranks, the first 64, of members whose workers have not stopped at ``step``
    or, before it is agreed, have not said at which step they can."""
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
        fields = Fields.read("drain report", text, MAX_SMALL_RECORD_BYTES)
        return DrainReport(
            version=fields.integer("version", 1),
            nonce=fields.token("nonce", MAX_ID),
            stopped=fields.boolean("stopped"),
            step=fields.integer("step", 0, 0),
            waiting_ranks=fields.ranks("waitingRanks"),
        )


@dataclass(frozen=True)
class StartsReport:
    """How many of this agent's workers started warm and cold in the round with this ``nonce``. Only if warm
    workers are on, and only with a write of the Lease that has another reason."""

    nonce: str
    warm: int = 0
    cold: int = 0
    cold_reason: str = ""
    """Why the first of ``cold`` did."""
    preparing: bool = False
    """Some member's interpreters for the next round are not ready, so that would start slower now (said by
    the leader)."""
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
        fields = Fields.read("starts report", text, MAX_SMALL_RECORD_BYTES)
        return StartsReport(
            version=fields.integer("version", 1),
            nonce=fields.token("nonce", MAX_ID),
            warm=fields.integer("warm", 0, 0, MAX_LOCAL_WORLD_SIZE),
            cold=fields.integer("cold", 0, 0, MAX_LOCAL_WORLD_SIZE),
            cold_reason=fields.string("coldReason", "")[:MAX_REASON],
            preparing=fields.boolean("preparing"),
        )
