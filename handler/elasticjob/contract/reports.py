"""What a member of a round reports of that round in its pod's Lease: one annotation for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from elasticjob.contract.fields import MAX_ID, MAX_INT32, MAX_LOCAL_WORLD_SIZE, RecordError
from elasticjob.contract.record import (
    FLAG,
    RANKS,
    Nonce,
    Record,
    number,
    omitted,
    optional_number,
    text,
    token,
)

MAX_REPORT_BYTES = 65_536
MAX_MESSAGE = 2_048
"""Characters kept of a message from a worker; the rest is in the pod's log."""
MAX_REASON = 200
"""Characters kept of the reason why a worker started cold."""
MAX_SOURCE = 20
"""Characters of the word that says where the state came from."""
MAX_MILLISECONDS = 10 * 366 * 86_400_000
"""Ten years: no round trains for longer, and dates end in the year 9999."""


@dataclass(frozen=True)
class FailureReport(Record, what="failure report", most_bytes=MAX_REPORT_BYTES):
    """A worker of this pod failed in round ``round_number``. It stays when the agent joins again."""

    round_number: Annotated[int, number(0, key="round")]
    group_rank: Annotated[int, number(0, MAX_INT32)]
    """The agent's rank in the round."""
    message: Annotated[str, text(MAX_MESSAGE, last=True)] = ""
    exit_code: Annotated[int | None, optional_number(-(2**31), MAX_INT32)] = None
    """Negative for a signal, as in :mod:`subprocess`; None: it could not be learnt."""
    local_rank: Annotated[int | None, optional_number(0, MAX_INT32)] = None
    """The worker's rank on that agent."""
    offset_milliseconds: Annotated[int | None, optional_number(0)] = None
    """The time from the round's barrier to the end of the first of this agent's workers, by its own clock.
    All leave the barrier together: the smallest of a round is its root failure, the others are echoes, and no
    two clocks are compared (I9)."""
    after_round_end: bool = False
    """When the worker ended, the record already said that the round was over: this explains its end, and is
    no cause."""
    job_uid: Annotated[str, omitted(token(MAX_ID, key="jobUID"))] = ""
    """The UID of the job, or the id of the run, whose round it was; "": an older handler has not said."""
    nonce: Annotated[str, omitted(token(MAX_ID))] = ""
    """That of the round; "": an older handler has not said."""

    def of(self, job_uid: str, number: int | None, nonce: str = "") -> bool:
        """Whether it is about this round of this job or run. A pod's Lease may still have the report of an
        earlier one. ``nonce`` is given where numbers may come again: in a run without operator."""
        is_it = self.round_number == number and self.job_uid in ("", job_uid)
        return is_it and (not nonce or self.nonce in ("", nonce))


@dataclass(frozen=True)
class RoundReport(Record, what="round report", most_bytes=MAX_REPORT_BYTES):
    """What a member says of the round with this ``nonce``."""

    nonce: Nonce
    established: bool = False
    """All members have reached the leader (said by the leader)."""
    unarrived_ranks: Annotated[Sequence[int], RANKS] = ()
    """Members that did not arrive in time (said by the leader)."""
    silent_ranks: Annotated[Sequence[int], RANKS] = ()
    """Members that sent no heartbeat (said by the leader)."""
    leader_lost: bool = False
    """This member can't reach the leader."""
    connection_refused: bool = False
    """The leader's machine answers that the port is closed; only with ``leader_lost``."""
    hung: bool = False
    """No step for ``hang_timeout`` (said by the leader)."""
    silent_milliseconds: Annotated[int | None, optional_number(0)] = None
    """How long the silence or the hang had lasted."""
    message: Annotated[str, text(MAX_MESSAGE)] = ""
    """The evidence in words."""


@dataclass(frozen=True)
class ProgressReport(Record, what="progress report"):
    """How far training has come in the round with this ``nonce``: from the leader, by its own clock, in each
    renewal of its Lease."""

    nonce: Nonce
    first_step: Annotated[int, number(0)]
    """The step of the first report."""
    step: Annotated[int, number(0)]
    """The highest so far: ``first_step <= step``."""
    first_step_milliseconds: Annotated[int, number(0, MAX_MILLISECONDS)]
    """The time from the round's barrier to the first report."""
    training_milliseconds: Annotated[int, number(0, MAX_MILLISECONDS)]
    """The time from the first report until the step last grew."""

    def check(self) -> None:
        """The highest step is no lower than the first. Raises RecordError."""
        if self.step < self.first_step:
            raise RecordError(f"progress report: step {self.step} is below firstStep {self.first_step}")


@dataclass(frozen=True)
class DrainReport(Record, what="drain report"):
    """The leader reports that all workers of the round with this ``nonce`` have called ``should_stop``, so
    that it can be drained."""

    nonce: Nonce
    stopped: bool = False
    """All have stopped at ``step`` and wait for the end of their round."""
    step: Annotated[int, number(0)] = 0
    """The step at which they stop; 0: not agreed."""
    waiting_ranks: Annotated[Sequence[int], omitted(RANKS)] = ()
    """If it takes a while: group ranks, the first 64, of members whose workers have not stopped at ``step``
    or, before it is agreed, have not said at which step they can."""


@dataclass(frozen=True)
class StartsReport(Record, what="starts report"):
    """How many of this agent's workers started warm and cold in the round with this ``nonce``. Only if warm
    workers are on, and only with a write of the Lease that has another reason."""

    nonce: Nonce
    warm: Annotated[int, number(0, MAX_LOCAL_WORLD_SIZE)] = 0
    cold: Annotated[int, number(0, MAX_LOCAL_WORLD_SIZE)] = 0
    cold_reason: Annotated[str, text(MAX_REASON)] = ""
    """Why the first of ``cold`` did."""
    preparing: Annotated[bool, omitted(FLAG)] = False
    """Some member's interpreters for the next round are not ready, so that would start slower now (said by
    the leader)."""


@dataclass(frozen=True)
class ResumedReport(Record, what="resumed report"):
    """Where the state of the round with this ``nonce`` came from, as rank 0's worker has found it: from the
    leader, with a write of its Lease that has another reason."""

    nonce: Nonce
    step: Annotated[int, number(0)]
    """The last step that the state has; 0: there was no checkpoint."""
    source: Annotated[str, token(MAX_SOURCE, key="from")]
    """A word of ``state_source.Source``; newer handlers may have others."""
    milliseconds: Annotated[int, number(0, MAX_MILLISECONDS)]
    """How long loading took."""
