"""Pods that are gone, as they were last seen, where that tells why they have gone.

A pod may be seen being evicted, and be gone before the next pass; or the passes see it, and cannot write what
follows from it into the status. The object is gone then, and nothing else tells it from one that was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from elasticjob_operator.plan.state.model import Pod

KEPT_SECONDS = 600.0
"""How long each is kept: longer than most outages of writes."""
MOST = 2_000
"""How many are kept: some megabytes."""


def tells_its_end(pod: Pod) -> bool:
    """Whether the pod says what takes it away, or how it has failed."""
    return bool(pod.disruption or pod.reason or (pod.exit is not None and not pod.exited_well))


class RemovedPods:
    """See the module."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: deque[tuple[float, str]] = deque()
        self.by_uid: dict[str, Pod] = {}

    def add(self, pod: Pod) -> None:
        """This pod has gone."""
        if tells_its_end(pod) and pod.uid not in self.by_uid:
            self.by_uid[pod.uid] = pod
            self._until.append((self._clock() + KEPT_SECONDS, pod.uid))
            self.age()

    def age(self) -> None:
        """Call it about once a minute: those that have been kept for long enough are forgotten."""
        now = self._clock()
        while self._until and (self._until[0][0] <= now or len(self._until) > MOST):
            del self.by_uid[self._until.popleft()[1]]
