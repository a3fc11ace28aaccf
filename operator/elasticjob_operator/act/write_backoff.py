"""Failing writes: each object is retried on its own, and everything else continues.

A write is identified by its target. One that fails is retried after 1, 2, 4 ... 30 s (the status and the
round Lease first after 0.2 s), but not before a Retry-After has passed. A failure is listed here until the
write succeeds or is no longer wanted; the planner puts it into the condition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from elasticjob.core.pauses import exponential
from elasticjob_operator.observe.errors import ApiError, Unavailable
from elasticjob_operator.plan.state.model import FailingWrite, Target

MAX_BACKOFF_SECONDS = 30.0
_FIRST_BACKOFF_SECONDS = 1.0
_FIRST_PROTOCOL_BACKOFF_SECONDS = 0.2
_HURRIED_BACKOFF_SECONDS = 1.0
"""News shows that the API server is there: the protocol's own writes then wait no longer than this."""


STATUS = Target("the status", "written", protocol=True)
ROUND = Target("the round Lease", "written", protocol=True)
READING = Target("the job", "read again")
CLAIMS = Target("the ResourceClaimTemplates of the template", "read")


@dataclass
class RetryState:
    """A write that has failed ``failures`` times, last at ``failed_at`` (monotonic)."""

    why: str
    failures: int
    failed_at: float
    pause: float
    at_least: float
    passing: bool
    """Whether the API server may take the very same write in a moment."""

    def left(self, now: float, hurried: bool) -> float:
        """Seconds until it is to be tried again."""
        pause = min(self.pause, _HURRIED_BACKOFF_SECONDS) if hurried else self.pause
        return max(0.0, self.failed_at + max(pause, self.at_least) - now)


class WriteBackoff:
    """The failing writes of one job."""

    def __init__(self, jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.25)) -> None:
        self._jitter = jitter
        self._failing: dict[Target, RetryState] = {}

    def __contains__(self, target: Target) -> bool:
        return target in self._failing

    def __iter__(self) -> Iterator[Target]:
        return iter(tuple(self._failing))

    def due(self, target: Target, now: float, hurried: bool = False) -> bool:
        """Whether it may be tried now. ``hurried``: there is news of the job."""
        failing = self._failing.get(target)
        return failing is None or failing.left(now, hurried and target.protocol) == 0

    def failed(self, target: Target, error: ApiError, now: float) -> RetryState:
        """Record a failure."""
        before = self._failing.get(target)
        failures = 1 if before is None else before.failures + 1
        first = _FIRST_PROTOCOL_BACKOFF_SECONDS if target.protocol else _FIRST_BACKOFF_SECONDS
        failing = RetryState(
            why=_words(error, target.name),
            failures=failures,
            failed_at=now,
            pause=exponential(first, MAX_BACKOFF_SECONDS, failures) * self._jitter(),
            at_least=(error.retry_after or 0.0) if isinstance(error, Unavailable) else 0.0,
            passing=isinstance(error, Unavailable),
        )
        self._failing[target] = failing
        return failing

    def put_off(self, target: Target, like: Target, now: float) -> None:
        """Its like has just failed: it is not even tried, for a moment."""
        other = self._failing.get(like)
        if other is not None:
            before = self._failing.get(target)
            failures = 0 if before is None else before.failures
            pause = max(_FIRST_BACKOFF_SECONDS * self._jitter(), other.at_least)
            self._failing[target] = RetryState(other.why, failures, now, pause, 0.0, other.passing)

    def done(self, target: Target) -> None:
        """It succeeded, or is no longer wanted."""
        self._failing.pop(target, None)

    def keep(self, verb: str, wanted: Iterable[Target]) -> None:
        """Forget what is no longer wanted, of those that can't be ``verb``."""
        names = set(wanted)
        for target in self:
            if target.verb == verb and not target.protocol and target not in names:
                del self._failing[target]

    def again(self, passing: bool = False) -> None:
        """All may be tried at once; with ``passing`` those that were not refused for good."""
        for failing in self._failing.values():
            if failing.passing or not passing:
                failing.pause = failing.at_least = 0.0

    def wake_after(self, now: float, under_way: Collection[Target] = ()) -> float | None:
        """Seconds until the next is due. One that is ``under_way`` makes a pass when it ends."""
        left = (f.left(now, False) for target, f in self._failing.items() if target not in under_way)
        return min(left, default=None)

    def failing_writes(self) -> tuple[FailingWrite, ...]:
        """What the planner gets to see of them."""
        return tuple(FailingWrite(t.name, t.verb, f.why) for t, f in self._failing.items() if f.why)


def _words(error: ApiError, name: str) -> str:
    """The API server's words, without the name, so that writes that fail for one reason are reported
    together."""
    text = error.message.removeprefix(f'pods "{name}" is forbidden: ')
    if error.status == 0 and isinstance(error, Unavailable):
        return f"no answer from the API server ({text})"
    return f"{text} ({error.status})" if isinstance(error, Unavailable) else text
