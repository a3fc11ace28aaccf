"""A queue of Kueue in small: Kueue itself, the operator's shell for Workloads, and the judge of quota.

The plan (``plan.queue``) is the real one. Kueue does what the real one was seen to do: it admits one Workload
at a time, asks for extras first, may leave an extra admitted when it takes the base (it fills back), evicts
Workloads whose pods are not ready, and goes away. The shell keeps the rules of ``act.queues``,
``act.workloads`` and ``controller.stray_quota``: what is deleted or made smaller must be as it was seen, and
a Workload is let go when its job's pods have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from elasticjob_operator.plan.queue import changes as c
from elasticjob_operator.plan.queue.grants import grant, granted, is_queued
from elasticjob_operator.plan.queue.workloads import PREEMPTED, Workload
from elasticjob_operator.plan.state.evidence import SCALING
from elasticjob_operator.plan.state.model import CreatePod, Job, Plan, Target
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.api import JOB_KEY, Conflict, Item, Key, NotFound, Refused, Unavailable
from tests.simulation.kernel import Script
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.operator import Operator
    from tests.simulation.world import World

KIND = "workload"
WORKLOADS = Target("its Workloads in the queue", "written")
PRIORITY = 100
STAYS_SECONDS = 130.0
"""How long pods may live for which there is no quota any more: a round establishes (30 s), drains (30 s), and
its pods have their hook and their grace (50 s). Counted while an operator sees what happens, and can write
what it decides."""


class Queued(NamedTuple):
    """A Workload as it is stored; its UID and version are those of the object."""

    job_uid: str
    workload: Workload


def seen(item: Item) -> Workload:
    """A Workload as an operator reads it."""
    stored: Workload = item.value.workload
    return replace(stored, uid=item.uid, version=item.version)


class QueueShell:
    """What one operator process does with the Workloads of the job."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        operator.spawn(self._release_strays())

    def limited(self, job: Job, status: JobStatus) -> Job:
        """``Queues.limited``."""
        workloads = self._of(job)
        if status.finished or not is_queued(job, workloads):
            return job
        return granted(job, grant(job, workloads))

    def write(self, job: Job, decided: Plan) -> Script:
        """``Queues.write``."""
        operator, workloads = self._operator, self._of(job)
        wanted = c.changes(job, workloads, self._use(job, decided)) if is_queued(job, workloads) else ()
        if not wanted:
            operator.write_backoff.done(WORKLOADS)
        elif operator.write_backoff.due(WORKLOADS, operator.kernel.now):
            try:
                yield from self._write_all(job, wanted)
                operator.write_backoff.done(WORKLOADS)
            except (Unavailable, Refused) as error:
                operator.failed(WORKLOADS, error)

    def _of(self, job: Job) -> tuple[Workload, ...]:
        items = self._operator.cache.items.items()
        return tuple(seen(i) for k, i in items if k[0] == KIND and i.value.job_uid == job.uid)

    def _pods(self, uid: str) -> dict[str, Any]:
        items = self._operator.cache.items.items()
        return {
            k[1]: i.value
            for k, i in items
            if k[0] == "pod" and i.uid.startswith(f"{uid}-") and not i.value.ended
        }

    def _use(self, job: Job, decided: Plan) -> c.Use:
        status, pods = decided.status, self._pods(job.uid)
        made = {action.name for action in decided.actions if isinstance(action, CreatePod)}
        met = status.current_round.phase == "Active" and status.current_round.established_time is not None
        return c.Use(
            pods=len(pods.keys() | made),
            joined=len(status.participants) if met else 0,
            running=sum(pod.running and not pod.deleting for pod in pods.values()),
            outcome=status.terminal_state,
        )

    def _write_all(self, job: Job, wanted: tuple[c.Change, ...]) -> Script:
        operator = self._operator
        for change in wanted:
            key = (KIND, change.name if isinstance(change, c.Create) else change.workload.name)
            try:
                yield from self._write(job, key, change)
            except NotFound:
                if isinstance(change, c.Create):
                    raise
                operator.forget(key, change.workload.uid)
            except Conflict:
                with contextlib.suppress(NotFound):
                    there = yield from operator.send(lambda key=key: operator.api.get(key))  # type: ignore[misc]
                    operator.cache.answered(key, there, operator.kernel.now)
                operator.news()
                return

    def _write(self, job: Job, key: Key, change: c.Change) -> Script:
        if isinstance(change, c.Create):
            priority = PRIORITY if change.priority is None else change.priority
            fields: dict[str, Any] = {"queue": change.queue, "priority": priority}
            made = Workload(key[1], "", change.priority is not None, change.count, **fields)
            yield from self._send(key, lambda: self._operator.api.create(key, Queued(job.uid, made)))
        elif isinstance(change, c.Release):
            yield from self.release(change.workload)
        else:
            yield from self._send(key, lambda: self._change(key, change))

    def _change(self, key: Key, change: c.Change) -> Item:
        """Carried out at the API server: of what is there now, or of what was seen."""
        assert not isinstance(change, (c.Create, c.Release))
        item = self._there(key, change.workload, same=isinstance(change, c.Resize))
        there: Workload = item.value.workload
        if isinstance(change, c.Clear):
            if not there.must_leave:
                return item
            there = replace(there, reserved=False, admitted=False, ready=False)
        elif isinstance(change, c.Resize):
            there = replace(there, count=change.count)
        elif isinstance(change, c.Reprioritize):
            there = replace(there, priority=change.priority)
        elif isinstance(change, c.Finish):
            there = replace(there, finished=True, kept=False)
        elif there.reserved:
            there = replace(there, ready=isinstance(change, c.SetReady))
        return self._operator.api.put(key, Queued(item.value.job_uid, there), item.uid)

    def release(self, workload: Workload) -> Script:
        """Delete it, and take our finalizer off: two requests, and the second may be another operator's."""
        key = (KIND, workload.name)

        def delete() -> Item:
            item = self._there(key, workload, same=True)
            return self._operator.api.put(
                key, Queued(item.value.job_uid, replace(item.value.workload, deleting=True)), item.uid
            )

        def let_go() -> None:
            self._operator.api.remove(key, self._there(key, workload).uid)

        if not workload.deleting:
            yield from self._send(key, delete)
        yield from self._operator.send(let_go)
        self._operator.forget(key, workload.uid)

    def _there(self, key: Key, workload: Workload, same: bool = False) -> Item:
        item = self._operator.api.get(key)
        if item.uid != workload.uid:
            raise NotFound(f"{key}")
        if same and item.version != workload.version:
            raise Conflict(f"{key} has changed")
        return item

    def _send(self, key: Key, work: Callable[[], Item]) -> Script:
        put = yield from self._operator.send(work)
        self._operator.cache.answered(key, put, self._operator.kernel.now)

    def _release_strays(self) -> Script:
        operator = self._operator
        while True:
            yield 1.0
            there = operator.cache.items.get(JOB_KEY)
            current = "" if there is None else there.uid
            for key, item in list(operator.cache.items.items()):
                if key[0] != KIND or not operator.ready or item.value.job_uid == current:
                    continue
                if not self._pods(item.value.job_uid):
                    with contextlib.suppress(Unavailable, Refused, NotFound, Conflict):
                        yield from self._release_stray(item)

    def _release_stray(self, item: Item) -> Script:
        """Unless its job is there: one that was made a moment ago is not known yet."""
        try:
            there = yield from self._operator.send(lambda: self._operator.api.get(JOB_KEY), reads=True)
        except NotFound:
            there = None
        if (there is None or there.uid != item.value.job_uid) and not self._pods(item.value.job_uid):
            yield from self.release(seen(item))


class Kueue:
    """Kueue, and what people and other jobs do to the queue. ``quota``: for how many pods there is some."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.kernel.rng
        self.quota = float("inf")
        self._away_until = 0.0
        world.kernel.after(0.5, self._turn)
        world.kernel.after(self._rng.uniform(2.0, 20.0), self._something)
        self._judge = Judge(world)

    def mend(self) -> None:
        """There is room for all."""
        self.quota, self._away_until = float("inf"), 0.0
        for key, item in self.items():
            if not item.value.workload.active:
                self._put(key, item, active=True)

    def items(self) -> Iterator[tuple[Key, Item]]:
        """The Workloads that there are, in truth."""
        return iter([(key, item) for key, item in self._world.api.items.items() if key[0] == KIND])

    def check_rest(self) -> None:
        """Raises Violation."""
        self._judge.rest()

    def _put(self, key: Key, item: Item, **fields: Any) -> None:
        changed = Queued(item.value.job_uid, replace(item.value.workload, **fields))
        self._world.api.put(key, changed, item.uid)

    def _turn(self) -> None:
        world = self._world
        world.kernel.after(self._rng.uniform(0.1, 1.0), self._turn)
        if world.kernel.now < self._away_until or world.api.weather.down:
            return
        found = [(key, item, item.value.workload) for key, item in self.items()]
        held = sum(one.count for _, _, one in found if one.holds_quota)
        waits = [
            (key, item, one)
            for key, item, one in found
            if one.active and not (one.reserved or one.finished or one.deleting)
        ]
        if waits:
            key, item, one = max(waits, key=lambda each: each[2].priority)
            if held + one.count <= self.quota:
                self._happens(f"admits {key[1]}")
                self._put(key, item, reserved=True, admitted=True, evicted="")
        self._reclaim([(key, item) for key, item, one in found if one.live])

    def _reclaim(self, live: list[tuple[Key, Item]]) -> None:
        """Ask for what is beyond the quota: extras first, the newest before others. When the base has to go
        an extra may stay."""
        count = sum(item.value.workload.count for _, item in live)
        order = sorted(live, key=lambda each: (not each[1].value.workload.extra, -each[1].version))
        fills_back = self._rng.random() < 0.5
        while count > self.quota:
            base = [each for each in order if not each[1].value.workload.extra]
            left = count - sum(each[1].value.workload.count for each in base)
            key, item = base[0] if base and fills_back and left <= self.quota else order[0]
            order.remove((key, item))
            count -= item.value.workload.count
            self._evict(key, item, PREEMPTED)

    def _evict(self, key: Key, item: Item, why: str) -> None:
        self._happens(f"asks for the quota of {key[1]}: {why}")
        self._put(key, item, evicted=why, active=why != "Deactivated")

    def _happens(self, what: str) -> None:
        self._world.kernel.say(f"** Kueue {what}")
        self._world.oracle.pace.fault()
        self._world.oracle.happens("*", SCALING)

    def _something(self) -> None:
        if self._world.mended:
            return
        self._world.kernel.after(
            self._rng.choice((1.0, 5.0, 15.0, 40.0)) * self._rng.uniform(0.5, 1.5), self._something
        )
        live = [(key, item) for key, item in self.items() if item.value.workload.live]
        what = self._rng.choice(("quota", "quota", "room", "room", "deactivate", "timeout", "delete", "away"))
        if what == "quota":
            self.quota = self._rng.randint(0, 5)
            self._happens(f"has a quota for {self.quota} pods")
        elif what == "room":
            self.quota = float("inf")
            self._happens("has room for all")
        elif what == "away":
            self._away_until = self._world.kernel.now + self._rng.choice((5.0, 30.0, 100.0))
            self._happens("is away")
        elif live:
            self._to_one(what, *self._rng.choice(live))

    def _to_one(self, what: str, key: Key, item: Item) -> None:
        if what == "deactivate":
            self._evict(key, item, "Deactivated")
            self._world.later(self._rng.uniform(1.0, 60.0), self._activate, key)
        elif what == "timeout":
            self._evict(key, item, "PodsReadyTimeout")
        else:
            self._happens(f"sees somebody delete {key[1]}")
            self._put(key, item, deleting=True)

    def _activate(self, key: Key) -> None:
        item = self._world.api.items.get(key)
        if item is not None:
            self._put(key, item, active=True)


class Judge:
    """Quota follows pods, and pods follow quota. Hears of each write, and looks every second."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[str, float] = {}
        world.kernel.after(1.0, self._look)
        world.api.committed.append(self._committed)

    def _committed(self, key: Key, old: Item | None, item: Item | None) -> None:
        """No quota is given back that a pod uses. Another operator, or caches that are behind, may be the
        reason: then nothing is said."""
        if key[0] != KIND or old is None or not old.value.workload.holds_quota:
            return
        there = item is not None and item.value.workload.holds_quota
        if there and item is not None and item.value.workload.count == old.value.workload.count:
            return
        world, uid = self._world, old.value.job_uid
        if not world.watched() or sum(operator.alive for operator in world.operators) > 1:
            return
        held = sum(one.count for one in self._workloads(uid) if one.holds_quota)
        slots = {pod.slot for pod in self._pods(uid)}
        if len(slots) > held:
            raise Violation("Quota", f"{key[1]} is given back: {len(slots)} pods live, and {held} have quota")

    def _look(self) -> None:
        world = self._world
        world.kernel.after(1.0, self._look)
        found = self._workloads(world.job_uid)
        live = sum(one.count for one in found if one.live)
        held = sum(one.count for one in found if one.holds_quota)
        pods = self._pods(world.job_uid)
        slots = {pod.slot for pod in pods}
        base = next((one for one in found if not one.extra and one.live), None)
        extras = [one.name for one in found if one.extra and one.holds_quota]
        counts = f"{len(pods)} pods live, quota of {held} is held and of {live} granted"
        self._lasts("beyond", len(slots) > live, STAYS_SECONDS, f"{counts}, for too long")
        stay = base is None and bool(extras) and not pods
        self._lasts("extras", stay, STAYS_SECONDS, f"{extras} stay without their base")

    def _workloads(self, uid: str) -> list[Workload]:
        items = self._world.api.items.items()
        return [seen(i) for k, i in items if k[0] == KIND and i.value.job_uid == uid]

    def _pods(self, uid: str) -> list[Any]:
        """Pods of the job that end when they are told to."""
        pods = [i for k, i in self._world.api.items.items() if k[0] == "pod" and i.uid.startswith(f"{uid}-")]
        return [i.value for i in pods if not i.value.ended and self._heeds(i)]

    def _heeds(self, item: Item) -> bool:
        agent = self._world.cluster.agents.get(item.uid)
        if agent is None:
            return not item.value.node
        node = self._world.cluster.node_of(agent)
        return agent.alive and not agent.hangs and not agent.frozen and node.healthy and node.kubelet

    def _lasts(self, what: str, wrong: bool, limit: float, text: str) -> None:
        now, pace = self._world.kernel.now, self._world.oracle.pace
        held = self._world.traits.holds_pods or not self._world.watched()
        if not wrong or self._world.job is None or held:
            self._since.pop(what, None)
            return
        since = max(self._since.setdefault(what, now), pace.last_fault())
        if now - since > limit:
            raise Violation("Quota", text)

    def rest(self) -> None:
        """When all is calm as much quota is used as there are pods, and nothing is on its way."""
        world = self._world
        found = self._workloads(world.job_uid)
        held = sum(one.count for one in found if one.holds_quota)
        pods = [k[1] for k, i in world.api.items.items() if k[0] == "pod" and not i.value.ended]
        if world.status.finished:
            if held or any(one.extra for one in found):
                raise Violation("Quota", f"the job has ended, and keeps {[one.name for one in found]}")
            return
        if held != len(pods) or any(one.must_leave or one.deleting for one in found):
            raise Violation("Quota", f"at rest {held} pods have quota, and {len(pods)} live: {found}")
        strays = [
            k[1] for k, i in world.api.items.items() if k[0] == KIND and i.value.job_uid != world.job_uid
        ]
        if strays:
            raise Violation("Quota", f"Workloads of jobs that are gone are left: {strays}")
