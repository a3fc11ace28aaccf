"""Pods that are gone, as they were last seen, where that tells why they have gone.

A pod may be seen being evicted, and be gone before the next pass; or the passes see it, and cannot write what
follows from it into the status. The object is gone then, and nothing else tells it from one that was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from elasticjob_operator.plan.state.model import Pod

KEPT_SECONDS = 600.0
"""How long each is kept: longer than most outages of writes."""
MOST = 2_000
"""How many are kept, of about 2 KB each. If there are more, the oldest of the namespace that has the most is
forgotten, so that no tenant displaces what is known of others."""


def kept(pod: Pod) -> Pod | None:
    """What is kept of a pod that is gone; None if it said neither what took it away nor how it has failed."""
    if not (pod.disruption or pod.reason or (pod.exit is not None and not pod.exited_well)):
        return None
    carried_out = bool(pod.disruption) and pod.exit is None  # the deletion that the condition announces
    return replace(
        pod,
        deleting=pod.deleting or carried_out,
        avoids=(),
        labels=(),
        waiting="",
        unschedulable="",
        group="",
    )


class RemovedPods:
    """See the module."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, deque[tuple[float, str]]] = {}
        self.by_uid: dict[str, Pod] = {}

    def add(self, namespace: str, pod: Pod) -> None:
        """This pod has gone."""
        said = kept(pod)
        if said is None or pod.uid in self.by_uid:
            return
        self.age()
        self.by_uid[pod.uid] = said
        self._until.setdefault(namespace, deque()).append((self._clock() + KEPT_SECONDS, pod.uid))
        if len(self.by_uid) > MOST:
            self._forget_first(max(self._until, key=lambda one: len(self._until[one])))

    def age(self) -> None:
        """Call it about once a minute: those that have been kept for long enough are forgotten."""
        now = self._clock()
        for namespace in list(self._until):
            while namespace in self._until and self._until[namespace][0][0] <= now:
                self._forget_first(namespace)

    def _forget_first(self, namespace: str) -> None:
        theirs = self._until[namespace]
        del self.by_uid[theirs.popleft()[1]]
        if not theirs:
            del self._until[namespace]
