"""Whatever people, administrators and Kueue do to several jobs, and however often the operator and Kueue die:
at no moment does a job have more pods than quota; when all is quiet again, as much quota is used as there are
pods, and none is left when the jobs are gone."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import API, Kueue
from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.observe.seen_workload import SeenWorkload, read_workload
from elasticjob_operator.plan.queue.workloads import base_of
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import ENDS_SLOWLY, SLEEPS, PlayedJob
from tests.kueue.stage import REQUESTS, Stage, labels

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(7200)]

QUEUES = ("a", "b")
OF_JOBS = ("submit", "submit", "submit", "scale", "suspend", "resume", "delete")
"""What Kueue has no say in."""
OF_OPERATOR = ("kill",)
OF_QUEUES = (
    *("ask", "ask", "ask", "ask", "withdraw", "withdraw"),
    *("deactivate", "activate", "activate"),
    *("drain", "restart", "restart"),
    "kueue-kill",
)
KINDS = (*OF_JOBS, *OF_OPERATOR, *OF_QUEUES)


class Life:
    """The jobs and the Workloads of others that there are."""

    def __init__(self, cluster: Cluster, stage: Stage, operator: Operator, kueue: Kueue, seed: int) -> None:
        self.cluster, self.stage, self.operator, self.kueue = cluster, stage, operator, kueue
        self.random = random.Random(seed)
        self.jobs: list[PlayedJob] = []
        self.others: list[str] = []
        self.done: Counter[str] = Counter()
        self.looked = 0
        """How often no job had more pods than quota."""
        self._fixed: set[str] = set()
        """Jobs that have one size."""
        self._made = 0

    def step(self) -> None:
        """One operation, and a moment for its effects to begin."""
        self._do(self.random.choice(KINDS))
        self._watch(self.random.uniform(0.1, 1.5))

    def settle(self) -> None:
        """All may run that is the jobs'. Of others' Workloads nobody gives the quota back: no operator is
        theirs."""
        while self.others:
            self.stage.withdraw(self.others.pop())
        self._do("restart")
        self._do("activate")

    def _do(self, kind: str) -> None:
        self.done[kind] += 1
        if kind == "submit":
            if len(self.jobs) < 5:
                self._submit()
        elif kind in OF_JOBS:
            if self.jobs:
                self._change(kind, self.random.choice(self.jobs))
        elif kind == "kill":
            self.operator.kill()
            self.operator.restart()
        elif kind == "kueue-kill":
            self._without_kueue()
        elif kind == "ask":
            if len(self.others) < 3:
                self._made += 1
                self.others.append(f"other-{self._made}")
                priority, queue = self.random.choice([0, 500]), self.random.choice(QUEUES)
                self.stage.ask(self.others[-1], queue, self.random.randint(1, 3), priority)
        elif kind == "withdraw":
            if self.others:
                self.stage.withdraw(self.others.pop())
        elif kind == "drain":
            self.stage.stop(self.random.choice(QUEUES))
        elif kind == "restart":
            for queue in QUEUES:
                self.stage.stop(queue, "None")
        else:
            self._activate(kind == "activate")

    def _without_kueue(self) -> None:
        """It dies, and comes back when people have changed something."""
        self.kueue.component.kill()
        try:
            for kind in self.random.choices((*OF_JOBS, *OF_OPERATOR), k=2):
                self._do(kind)
                self._watch(1.0)
        finally:
            self.kueue.component.start()

    def _activate(self, active: bool) -> None:
        """Deactivate one of the jobs' Workloads, or activate all."""
        found = [one for one in self._workloads() if one.workload.active != active]
        names = sorted(one.name for one in found)
        for name in names if active else self.random.sample(names, min(1, len(names))):
            self.stage.activate(name, active)

    def _watch(self, seconds: float) -> None:
        """For so long no job has more pods than quota."""
        until = time.monotonic() + seconds
        while True:
            assert self._overdrawn() == {}
            self.looked += 1
            if time.monotonic() >= until:
                return
            time.sleep(0.1)  # the pace of the operations, not a wait for anything

    def _overdrawn(self) -> dict[str, Any]:
        """Jobs with more pods than quota, all as of one moment. A pod that takes the place of another one
        counts once with it: it may be made while that one ends."""
        path = f"/api/v1/namespaces/{self.stage.namespace}/pods?labelSelector={JOB_LABEL}"
        pods = self.cluster.read(path)
        then = f"resourceVersion={pods['metadata']['resourceVersion']}&resourceVersionMatch=Exact"
        slots: dict[str, set[str]] = defaultdict(set)
        held = Counter[str]()
        for pod in pods["items"]:
            if pod["status"].get("phase") not in ("Succeeded", "Failed"):
                slots[pod["metadata"]["labels"][JOB_LABEL]].add(pod["metadata"]["name"].rpartition("-")[0])
        for one in self._workloads(then):
            held[one.job] += one.workload.count if one.workload.holds_quota else 0
        return {job: (held[job], names) for job, names in slots.items() if len(names) > held[job]}

    def _workloads(self, query: str = "") -> list[SeenWorkload]:
        """Those of all jobs."""
        path = f"{API}/namespaces/{self.stage.namespace}/workloads?labelSelector={JOB_LABEL}&{query}"
        return [read_workload(raw) for raw in self.cluster.read(path)["items"]]

    def _submit(self) -> None:
        self._made += 1
        job = PlayedJob(self.cluster, self.stage.namespace, f"job-{self._made}")
        job.labels, job.resources = labels(self.random.choice(QUEUES)), {"requests": REQUESTS}
        least = self.random.randint(1, 2)
        size: dict[str, Any] = {"replicas": least + self.random.randint(0, 3), "minReplicas": least}
        if self.random.random() < 0.25:
            del size["minReplicas"]
            self._fixed.add(job.name)
        job.apply(self.random.choice([SLEEPS, ENDS_SLOWLY]), **size)
        self.jobs.append(job)

    def _change(self, kind: str, job: PlayedJob) -> None:
        if kind == "delete":
            self.jobs.remove(job)
            job.delete("--wait=false")
        elif kind == "scale":
            job.scale(self.random.randint(2, 5))
        else:
            job.patch(suspend=kind == "suspend")

    def balanced(self) -> bool:
        """Whether pods, their Workloads and Kueue's own count agree, and nothing is on its way."""
        held = dict.fromkeys(QUEUES, 0)
        for job in self.jobs:
            pods, workloads = job.pods().values(), self.stage.of_job(job).values()
            counts = [one.count for one in workloads if one.holds_quota]
            if any(one.must_leave or one.deleting for one in workloads):
                return False
            base, waits = base_of(workloads), not all(one.holds_quota for one in workloads)
            if base is not None and base.live and waits and job.name in self._fixed:
                if len(pods) != base.count:  # until all is admitted
                    return False
            elif sum(counts) != len(pods):
                return False
            if any("deletionTimestamp" in pod["metadata"] for pod in pods):
                return False
            held[job.labels["kueue.x-k8s.io/queue-name"]] += sum(counts)
        found = (self.stage.workload(name) for name in self.others)
        for other in found:
            if other is not None and other.holds_quota:
                held[other.queue] += other.count
        return all(self.stage.used(queue) == count for queue, count in held.items())


def test_quota_is_neither_leaked_nor_used_twice(
    stage: Stage,
    played: PlayedJob,
    installed: Cluster,
    operator: Operator,
    kueue: Kueue,
    pytestconfig: pytest.Config,
) -> None:
    operations, seed = int(pytestconfig.getoption("operations")), int(pytestconfig.getoption("seed"))
    flavor = stage.flavor()
    for queue in QUEUES:
        stage.queue(queue, 4, flavor)
    life = Life(installed, stage, operator, kueue, seed)
    for _ in range(operations):
        life.step()
    life.settle()
    print(f"seed {seed}: {dict(life.done)}; {life.looked} looks at pods and quotas")
    played.wait_for(life.balanced, "pods, Workloads and quotas agree", 180)
    assert life.jobs, "another seed"
    for job in life.jobs:
        job.delete("--wait=false")
    played.wait_for(lambda: all(not stage.of_job(job) for job in life.jobs), "no Workload is left", 120)
    played.wait_for(lambda: [stage.used(queue) for queue in QUEUES] == [0, 0], "no quota is used")
