"""A job's Workloads: Kueue's objects that hold quota.

The *base* stands for the pods without which the job does not train (``minReplicas``). Each *extra* stands for
some of the others, with a lower priority: Kueue takes quota back from extras first, and the job shrinks
instead of stopping. Extras are alike: how many pods of them are admitted says how many pods may live beyond
the base, and which pod ends is decided here. A Workload has a finalizer, because quota that is given away
while a pod still ends would be used twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from elasticjob_operator.plan.state.model import Job, JobSpec

FINALIZER = "elasticjob.dev/quota"
POD_SET = "main"
PREEMPTED = "Preempted"
"""Why Kueue has evicted a Workload whose quota another one gets."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One Workload. ``count`` is of pods. ``reserved``: it has a ``status.admission``, and so quota, until it
    is ``finished``. ``admitted`` is the condition alone: it may stay when the quota is gone. So may the
    condition Evicted, whose reason is ``evicted``. ``kept``: it has our finalizer. ``ready``: its condition
    PodsReady is True. ``updates`` is what admission checks ask of pods, as JSON. ``message``: why it waits or
    was evicted, in Kueue's words."""

    name: str
    uid: str
    extra: bool
    count: int
    queue: str = ""
    priority_class: str = ""
    priority: int = 0
    active: bool = True
    reserved: bool = False
    admitted: bool = False
    evicted: str = ""
    finished: bool = False
    deleting: bool = False
    kept: bool = True
    ready: bool = False
    flavors: tuple[str, ...] = ()
    updates: str = ""
    message: str = ""

    @property
    def holds_quota(self) -> bool:
        """Whether its pods are counted by Kueue."""
        return self.reserved and not self.finished

    @property
    def must_leave(self) -> bool:
        """Whether Kueue asks for its quota."""
        return self.holds_quota and bool(self.evicted)

    @property
    def live(self) -> bool:
        """Whether its pods may live."""
        return self.holds_quota and self.admitted and not self.evicted and not self.deleting


def base_of(workloads: Iterable[Workload]) -> Workload | None:
    """The base, if there is one."""
    return next((one for one in workloads if not one.extra), None)


def extras_of(workloads: Iterable[Workload]) -> list[Workload]:
    """The extras by name, which is the order of their numbers."""
    return sorted((one for one in workloads if one.extra), key=lambda one: (len(one.name), one.name))


def base_name(job: Job) -> str:
    """The name of the job's base. Another job of this name has another one: that of the former job may
    outlive it by the grace of its pods."""
    return f"{job.name}-{job.uid[:8]}"


def extra_name(job: Job, number: int) -> str:
    """The name of one of its extras."""
    return f"{base_name(job)}-x{number}"


def base_count(job: Job) -> int:
    """How many pods the base stands for: those without which there is no round."""
    return job.spec.least


def chunks(spec: JobSpec, covered: int) -> list[int]:
    """How many pods each extra stands for, where a base and extras cover this many already. Each brings the
    job to a size that its rounds may have; spares may come one by one. A job of a fixed size gets one."""
    if spec.min_replicas is None:
        return [spec.pods - covered] * (spec.pods > covered)
    spares = range(max(covered, spec.replicas) + 1, spec.pods + 1)
    steps = [*spec.sizes.between(covered, spec.replicas), *spares]
    reached = [steps[end - 1] for end in itertools.accumulate(pieces(len(steps)))]
    return [end - begin for begin, end in itertools.pairwise([covered, *reached])]


def pieces(steps: int) -> list[int]:
    """This number in pieces: 1, 1, 2, 4 ... Any smaller number can be made of some of them, and there are
    few: Kueue admits one Workload of a queue at a time."""
    sizes: list[int] = []
    while steps > 0:
        sizes.append(min(steps, max(1, sum(sizes))))
        steps -= sizes[-1]
    return sizes
