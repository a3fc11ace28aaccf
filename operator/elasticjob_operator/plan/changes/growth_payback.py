"""Whether it pays to end a running round so that it can grow: what that costs against what it gains. Pure.

All members stop while the larger round comes together and starts its script. The members that are added
make up for that, second by second: ``paybackSeconds`` says how long it may take. The cost is what the job's
own rounds have taken, by the medians over ``status.roundHistory``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from elasticjob.contract.text import counted
from elasticjob.rounds.causes import PLANNED
from elasticjob_operator.plan.changes import draining
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import RoundHistory


@dataclass(frozen=True)
class Cost:
    """Seconds in which no member trains anything new: until the members have met, until the script has made
    its first step, and until the steps since the last checkpoint are made again."""

    rendezvous: float
    start: float
    redone: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.rendezvous + self.start + self.redone


def refusal(p: Pass, have: int, to: int) -> str:
    """Why the round does not grow to this many members now, or ""; also "" while no round has reported a
    step."""
    limit = p.job.spec.payback
    if limit is None:
        return ""
    progress = p.status.progress
    per_step = progress.milliseconds_per_step if progress is not None else None
    spent = cost(p.status.round_history, (per_step or 0) / 1000, drains=draining.takes_part(p))
    if spent is None:
        return ""
    seconds = payback_seconds(spent, have, to)
    if seconds <= limit:
        return ""
    again = f", {spent.redone:.0f} s of steps to repeat" if spent.redone else ""
    return (
        f"does not grow to {to} members yet: {counted(have, 'member')} would stop for {spent.seconds:.0f} s "
        f"({spent.rendezvous:.0f} s rendezvous, {spent.start:.0f} s to the first step{again}), and "
        f"{to - have} more would need {seconds:.0f} s to make up for that; paybackSeconds is {limit}"
    )


def payback_seconds(spent: Cost, have: int, to: int) -> float:
    """How long ``to`` members train until they have done as much as ``have`` without the change."""
    return spent.seconds * have / (to - have)


def cost(history: Sequence[RoundHistory], step_seconds: float, *, drains: bool) -> Cost | None:
    """What a planned change costs, from rounds of this job, newest first; None if none has made a step.

    ``drains``: no step is repeated, because the workers stop at a common step. Rounds that were formed after
    a failure say nothing about the rendezvous: they have waited for new pods.
    """
    starts = [
        (h.first_step_milliseconds - h.rendezvous_milliseconds) / 1000
        for h in history
        if h.first_step_milliseconds is not None and h.rendezvous_milliseconds is not None
    ]
    if not starts:
        return None
    planned = [
        h.rendezvous_milliseconds / 1000
        for h in history
        if h.cause in PLANNED and h.rendezvous_milliseconds is not None
    ]
    redone = [
        max(0, before.last_step + 1 - formed.first_step) * step_seconds
        for formed, before in pairwise(history)
        if formed.first_step is not None and before.last_step is not None and not _drained(before)
    ]
    # Whole seconds: the seconds of a step change with every report, and each change of a sentence is a write.
    return Cost(_median(planned), median(starts), 0.0 if drains else float(round(_median(redone))))


def _drained(before: RoundHistory) -> bool:
    return before.end is not None and before.end.drain == draining.HowStopped.STOPPED


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
