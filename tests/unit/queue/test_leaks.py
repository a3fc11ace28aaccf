"""A job in a queue that anything may happen to: no pod lives without quota, and no quota is left behind.

Kueue is played: it admits what fits, in any order, and asks for anything at any time, as the real one was
seen to: an extra without its base and the base without its extras. Writes are lost. Pods end when they want.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elasticjob_operator.plan.queue import changes as c
from elasticjob_operator.plan.queue.grants import grant
from elasticjob_operator.plan.queue.workloads import Workload, base_name
from tests.unit.queue.words import job

_REASONS = ("Preempted", "PodsReadyTimeout", "ClusterQueueStopped", "Deactivated")


class QueuedJob(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.workloads: dict[str, Workload] = {}
        self.run = 0
        self.ending = 0
        self.job = job()
        self.outcome = ""
        self.made = 0

    @initialize(replicas=st.integers(1, 20), least=st.integers(0, 20), spares=st.integers(0, 2))
    def submit(self, replicas: int, least: int, spares: int) -> None:
        self.job = job(replicas=replicas, min_replicas=min(least, replicas) or None, spares=spares)

    # The operator

    @rule(writes=st.integers(0, 30))
    def reconcile(self, writes: int) -> None:
        """One pass, of whose writes only the first ones arrive."""
        stops = self.outcome or self.job.spec.suspend
        allowed = 0 if stops else grant(self.job, tuple(self.workloads.values())).pods
        if self.run > allowed:
            self.ending += self.run - allowed
            self.run = allowed
        self.run += max(0, allowed - self.run - self.ending)
        use = c.Use(self.run + self.ending, self.run, self.run, self.outcome)
        for change in c.changes(self.job, tuple(self.workloads.values()), use)[:writes]:
            self.write(change)

    def write(self, change: c.Change) -> None:
        if isinstance(change, c.Create):
            self.made += 1
            assert change.name not in self.workloads
            extra = change.name != base_name(self.job)
            priority = 100 if change.priority is None else change.priority
            fields: dict[str, Any] = {"queue": change.queue, "priority": priority}
            if not extra and self.job.queue is not None:
                fields["priority_class"] = self.job.queue.priority_class
            self.workloads[change.name] = Workload(change.name, str(self.made), extra, change.count, **fields)
            return
        old = self.workloads[change.workload.name]
        assert old.uid == change.workload.uid
        if isinstance(change, c.Release):
            del self.workloads[old.name]
        elif isinstance(change, (c.SetReady, c.SetUnready)):
            assert old.ready == isinstance(change, c.SetUnready)
            self.workloads[old.name] = replace(old, ready=not old.ready)
        elif isinstance(change, c.Clear):
            self.workloads[old.name] = replace(old, reserved=False, admitted=False, ready=False)
        elif isinstance(change, c.Resize):
            assert 0 < change.count < old.count
            self.workloads[old.name] = replace(old, count=change.count)
        elif isinstance(change, c.Finish):
            self.workloads[old.name] = replace(old, finished=True, kept=False)

    # Kueue

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        waits = [one for one in self.workloads.values() if not (one.reserved or one.finished or one.deleting)]
        waits = [one for one in waits if one.active]
        if waits:
            one = data.draw(st.sampled_from(waits))
            self.workloads[one.name] = replace(one, reserved=True, admitted=True, evicted="")

    @rule(data=st.data(), reason=st.sampled_from(_REASONS))
    def evict(self, data: st.DataObject, reason: str) -> None:
        live = [one for one in self.workloads.values() if one.live]
        if live:
            one = data.draw(st.sampled_from(live))
            self.workloads[one.name] = replace(one, evicted=reason, active=reason != "Deactivated")

    @rule(data=st.data())
    def delete_a_workload(self, data: st.DataObject) -> None:
        """Somebody does, with kubectl."""
        if self.workloads:
            one = data.draw(st.sampled_from(sorted(self.workloads)))
            self.workloads[one] = replace(self.workloads[one], deleting=True)

    # Pods, and the user

    @rule(count=st.integers(1, 20))
    def end(self, count: int) -> None:
        self.ending = max(0, self.ending - count)

    @rule(count=st.integers(1, 3))
    def lose(self, count: int) -> None:
        self.run = max(0, self.run - count)

    @rule(replicas=st.integers(1, 20))
    def scale(self, replicas: int) -> None:
        self.change(replicas=max(replicas, self.job.spec.min_replicas or 1))

    @rule(least=st.integers(1, 20))
    def change_least(self, least: int) -> None:
        if self.job.spec.min_replicas is not None:
            self.change(min_replicas=min(least, self.job.spec.replicas))

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.change(suspend=suspend)

    @rule(queue=st.sampled_from(["a", "b"]))
    def move(self, queue: str) -> None:
        assert self.job.queue is not None
        self.job = replace(self.job, queue=replace(self.job.queue, name=queue))

    def change(self, **spec: Any) -> None:
        self.job = replace(self.job, spec=replace(self.job.spec, **spec))

    # What holds

    @invariant()
    def every_pod_has_quota(self) -> None:
        assert self.run + self.ending <= self.held()

    def held(self) -> int:
        return sum(one.count for one in self.workloads.values() if one.holds_quota)

    def teardown(self) -> None:
        """With room for all, and no other news, the job gets what it asks for; then it gives it back."""
        self.change(suspend=False)
        for _ in range(12):
            self.settle()
        wanted = self.job.spec.pods
        assert (self.run, self.ending, self.held()) == (wanted, 0, wanted)
        assert len([one for one in self.workloads.values() if not one.extra]) == 1
        self.change(suspend=True)
        for _ in range(6):
            self.settle()
        assert (self.run, self.workloads) == (0, {})
        self.change(suspend=False)
        for _ in range(12):
            self.settle()
        self.outcome = "Complete"
        for _ in range(6):
            self.settle()
        assert self.held() == 0
        assert [one.finished for one in self.workloads.values()] == [True]

    def settle(self) -> None:
        for name, one in list(self.workloads.items()):
            active = replace(one, active=True)
            if not (one.reserved or one.finished or one.deleting):
                active = replace(active, reserved=True, admitted=True, evicted="")
            self.workloads[name] = active
        self.reconcile(writes=30)
        self.ending = 0
        self.every_pod_has_quota()


TestQueuedJob = QueuedJob.TestCase
TestQueuedJob.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
