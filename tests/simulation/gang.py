"""A PodGroup of Kubernetes in small: the scheduler that places its pods together, and the operator's shell.

The plan (``plan.pods.gang``) is the real one. The scheduler does what the real one was seen to do: it looks
at no pod of a group while fewer than its minimum are there, and writes nothing into their status; then it
places as many as are missing, or none. The shell keeps the rules of ``act.pod_groups`` and ``act.owned``: no
pod is made before its group, a group that cannot be changed is made again only while no pod is in it, and a
change by others is seen at the next comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from elasticjob_operator.act.owned_kinds import GROUP, gathers
from elasticjob_operator.plan.pods.gang import minimum
from elasticjob_operator.plan.state.model import Action, CreatePod, Job, Plan, Pod
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.api import Conflict, Item, Key, NotFound, Refused, Unavailable
from tests.simulation.kernel import Script
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.operator import Operator
    from tests.simulation.world import World

GROUP_KEY: Key = ("podgroup", "")
NAME = "mnist-elasticjob"
COMPARED_SECONDS = 60.0
"""How often an operator looks whether the group is still as it was written; the real one does every few
minutes, with everything that jobs own."""


class Group(NamedTuple):
    """The object. ``minimum``: how many pods it gathers."""

    job_uid: str
    minimum: int


class GangShell:
    """What one operator process does with the PodGroup of the job. ``fixed``: the API server takes no change
    of its minimum, as that of Kubernetes 1.36."""

    def __init__(self, operator: Operator, fixed: bool) -> None:
        self._operator = operator
        self._fixed = fixed
        self._uid = ""
        self._minimum: int | None = None
        """As it was written or seen last; None: no group is known."""
        self._writes = False
        operator.spawn(self._compare())

    def fixed_minimum(self) -> int | None:
        """``PodGroups.fixed_minimum``."""
        return self._minimum if self._fixed else None

    def keep(self, job: Job, decided: Plan) -> None:
        """Begin the write that is due."""
        if job.uid != self._uid:
            self._uid, self._minimum = job.uid, None
        backoff = self._operator.write_backoff
        wanted = minimum(job, decided.status) if gathers(job) else None
        if wanted is None:
            self._minimum = None  # a job that is resumed looks what is there
        held = self._fixed and self._minimum is not None and self._grouped(job)
        if decided.status.finished or wanted in (None, self._minimum) or held:
            backoff.done(GROUP)
        elif not self._writes and backoff.due(GROUP, self._operator.kernel.now):
            assert wanted is not None
            self._writes = True
            self._operator.spawn(self._write(Group(job.uid, wanted)))

    def possible(self, job: Job, status: JobStatus, actions: Sequence[Action]) -> list[Action]:
        """The actions without the making of pods whose group is not there."""
        group = self.group_of(job, status)
        return [one for one in actions if group is not None or not isinstance(one, CreatePod)]

    def group_of(self, job: Job, status: JobStatus) -> str | None:
        """``OwnedWriter.group``."""
        least = minimum(job, status)
        if not gathers(job) or any(not pod.group for pod in self._live(job)):
            return ""
        if self._minimum is None or self._minimum == least:
            return None if self._minimum is None else NAME
        if not (self._fixed and self._grouped(job)):
            return None
        return NAME if self._minimum <= least else ""

    def _grouped(self, job: Job) -> bool:
        return any(pod.group for pod in self._live(job))

    def _live(self, job: Job) -> list[Pod]:
        items = [i for k, i in self._operator.cache.items.items() if k[0] == "pod"]
        own = [i.value for i in items if i.uid.startswith(f"{job.uid}-")]
        return [pod for pod in own if not (pod.ended or pod.deleting)]

    def _write(self, group: Group) -> Script:
        operator = self._operator
        try:
            there = yield from self._read()
            if there is not None and there.value != group and self._is_foreign_or_fixed(there, group):
                yield from operator.send(lambda: operator.api.remove(GROUP_KEY, there.uid))
            yield from operator.send(lambda: operator.api.put(GROUP_KEY, group))
            operator.write_backoff.done(GROUP)
            if group.job_uid == self._uid:
                self._minimum = group.minimum
        except (Unavailable, Refused) as error:
            operator.failed(GROUP, error)
        except (NotFound, Conflict):
            pass  # another has removed it in between: the next pass writes it
        self._writes = False
        operator.again()

    def _is_foreign_or_fixed(self, there: Item, group: Group) -> bool:
        return self._fixed or there.value.job_uid != group.job_uid

    def _compare(self) -> Script:
        while True:
            yield COMPARED_SECONDS
            try:
                there = yield from self._read()
            except (Unavailable, Refused):
                continue
            ours = there is not None and there.value.job_uid == self._uid
            seen = there.value.minimum if there is not None and ours else None
            if seen != self._minimum and not self._writes:
                self._minimum = seen
                self._operator.again()

    def _read(self) -> Script:
        try:
            return (yield from self._operator.send(lambda: self._operator.api.get(GROUP_KEY), reads=True))
        except NotFound:
            return None


class Gang:
    """The scheduler's part, and people who delete the group."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.kernel.after(world.kernel.between(5.0, 60.0), self._something)
        if world.kernel.rng.random() < 0.5:
            self._begin_without_room()

    def holds(self, pod: Pod) -> bool:
        """Whether the scheduler does not look at this pod."""
        if not pod.group:
            return False
        group = self._group()
        return group is None or len(self._gathered()) < group.minimum

    def together(self, pod: Pod) -> int:
        """How many pods are to be placed at once with this one, at least: 1 where enough have a node."""
        group = self._group()
        if not pod.group or group is None:
            return 1
        placed = sum(bool(one.node) for one in self._gathered())
        return max(1, group.minimum - placed)

    def check_rest(self) -> None:
        """Raises Violation if pods of the job are still held: nothing would ever place them."""
        held = [pod.name for pod in self._gathered() if not pod.node and self.holds(pod)]
        if held:
            raise Violation("Gang", f"the scheduler holds {', '.join(held)} for good")

    def _group(self) -> Group | None:
        item = self._world.api.items.get(GROUP_KEY)
        return None if item is None else item.value

    def _gathered(self) -> list[Pod]:
        items = self._world.api.items.items()
        return [i.value for k, i in items if k[0] == "pod" and i.value.group and not i.value.ended]

    def _begin_without_room(self) -> None:
        """Nothing of the job can be placed, and somebody makes do with less of it."""
        world = self._world
        world.room = 0
        world.kernel.after(world.kernel.between(5.0, 40.0), self._make_do)

    def _make_do(self) -> None:
        world = self._world
        if world.mended or world.job is None:
            return
        spec = world.job.job.spec
        to = world.kernel.rng.randint(1, max(1, spec.replicas - 1))
        smaller = world.kernel.rng.random() < 0.5
        world.plan(f"{'replicas are' if smaller else 'minReplicas is'} {to}, and there is room")
        if smaller:
            world.change_spec(lambda s: replace(s, replicas=to, min_replicas=1))
        else:
            world.change_spec(lambda s: replace(s, min_replicas=to))
        world.room = world.kernel.rng.choice((None, to))

    def _something(self) -> None:
        world = self._world
        if world.mended:
            return
        world.kernel.after(world.kernel.between(30.0, 200.0), self._something)
        if world.kernel.rng.random() < 0.3 and GROUP_KEY in world.api.items:
            world.disturb("somebody deletes the PodGroup")
            world.api.remove(GROUP_KEY)
