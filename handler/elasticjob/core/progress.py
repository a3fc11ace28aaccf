"""How far a round's training has come, and whether it hangs (docs/internals/hangs.md). Pure.

The step of a round is the highest that any rank has reported, not the lowest. In synchronous training all
ranks stop within a step of the one that hangs, so the highest step stops, too. The lowest would accuse
healthy jobs: a rank may report only every hundredth step, may only evaluate, or may have finished before the
others. False alarms are worse than late ones: a hang costs some minutes, needless restarts cost them again
and again. Jobs that report no step are not judged, and a round may take any time until its first step
(compiling, loading data, finding the right batch).

A round does not hang while any rank reports anything new, even a lower step: a rank that lags behind makes
progress, and a script that trains its folds one after the other may count each from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import ProgressReport, RoundReport
from elasticjob.core.heartbeats import OWN_STALL_SECONDS


class Steps(NamedTuple):
    """What the workers of one agent have reported. Times are the caller's monotonic seconds."""

    first_step: int
    first_at: float
    step: int
    """The highest: ``first_step <= step``."""
    at: float
    """When ``step`` was reached: ``first_at <= at``."""
    moved_at: float = 0.0
    """When any of them last reported any step: later than ``at`` if one lags behind, or begins again in
    another process."""


class ProgressMonitor:
    """Follows one round on its leader. ``began`` is when the barrier was passed."""

    def __init__(self, nonce: str, began: float, limits: Limits) -> None:
        self._nonce = nonce
        self._began = began
        self._limits = limits
        self._last_tick = began
        self._steps: Steps | None = None
        self._others: Mapping[int, int] = {}
        """The last known steps of the other members, by rank."""
        self._quiet_since = began
        self._reported = False

    @property
    def report(self) -> ProgressReport | None:
        """The progress so far; None before the first step."""
        steps = self._steps
        if steps is None:
            return None
        return ProgressReport(
            self._nonce,
            steps.first_step,
            steps.step,
            round((steps.first_at - self._began) * 1000),
            round((steps.at - steps.first_at) * 1000),
        )

    def update(self, now: float, own: Steps | None, others: Mapping[int, int]) -> None:
        """Take in what the leader's own workers have reported, and the highest step of each other member, by
        rank (-1: none); empty if that is not known.

        Times are known for its own workers; a step of the others counts from when it arrives.
        """
        highest, moved = max(others.values(), default=-1), bool(others) and others != self._others
        self._others = others or self._others
        if own is not None:
            first_at = min(max(own.first_at, self._began), now)
            at = min(max(own.at, first_at), now)
            step = max(own.step, own.first_step)
            own = Steps(own.first_step, first_at, step, at, min(max(own.moved_at, at), now))
        if self._steps is None:
            first = own or (Steps(highest, now, highest, now) if highest >= 0 else None)
            if first is None:
                return
            self._steps, self._quiet_since = first, max(self._quiet_since, first.at)
        steps = self._steps
        if own is not None:
            self._quiet_since = max(self._quiet_since, own.moved_at)
        if moved:
            self._quiet_since = now
        if own is not None and own.step > steps.step:
            steps = steps._replace(step=own.step, at=max(own.at, steps.at))
        if highest > steps.step:
            steps = steps._replace(step=highest, at=now)
        if steps.step > self._steps.step:
            self._steps, self._quiet_since = steps, max(self._quiet_since, steps.at)

    def tick(self, now: float, own: Steps | None, others: Mapping[int, int] | None) -> RoundReport | None:
        """``update``, then return what speaks against the round, once: that it hangs.

        ``others`` None means that the others' steps are not known now: nothing is judged. After a stall of
        its own the monitor counts from its end: it can't know what the workers would have reported.
        """
        if now - self._last_tick > self._limits.heartbeat_period + OWN_STALL_SECONDS:
            self._quiet_since = now
        self._last_tick = now
        self.update(now, own, others or {})
        silent = now - self._quiet_since
        if self._steps is None or self._reported or not self._limits.hang_timeout or others is None:
            return None
        if silent < self._limits.hang_timeout:
            return None
        self._reported = True
        text = f"no step after step {self._steps.step} for {silent:.0f} s"
        return RoundReport(self._nonce, hung=True, silent_milliseconds=round(silent * 1000), message=text)
