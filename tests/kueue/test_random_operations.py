"""Whatever people and Kueue do to several jobs, and however often the operator dies: when all is quiet again,
as much quota is used as there are pods, and none is left when the jobs are gone."""

from __future__ import annotations

import random
import time

import pytest

from devcluster.cluster import Cluster
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import ENDS_SLOWLY, SLEEPS, PlayedJob
from tests.kueue.stage import REQUESTS, Stage, labels

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(7200)]

QUEUES = ("a", "b")
KINDS = (
    "submit",
    "submit",
    "submit",
    "scale",
    "suspend",
    "resume",
    "delete",
    "ask",
    "ask",
    "withdraw",
    "kill",
)


class Life:
    """The jobs and the Workloads of others that there are."""

    def __init__(self, cluster: Cluster, stage: Stage, operator: Operator, seed: int) -> None:
        self.cluster, self.stage, self.operator = cluster, stage, operator
        self.random = random.Random(seed)
        self.jobs: list[PlayedJob] = []
        self.others: list[str] = []
        self._made = 0

    def step(self) -> None:
        """One operation, and a moment for its effects to begin."""
        kind = self.random.choice(KINDS)
        if kind == "submit" and len(self.jobs) < 5:
            self._submit()
        elif kind == "ask" and len(self.others) < 3:
            self._made += 1
            self.others.append(f"other-{self._made}")
            priority, queue = self.random.choice([0, 500]), self.random.choice(QUEUES)
            self.stage.ask(self.others[-1], queue, self.random.randint(1, 3), priority)
        elif kind == "withdraw" and self.others:
            self.stage.withdraw(self.others.pop())
        elif kind == "kill":
            self.operator.kill()
            self.operator.restart()
        elif self.jobs and kind not in ("submit", "ask", "withdraw"):
            self._change(kind, self.random.choice(self.jobs))
        time.sleep(self.random.uniform(0.1, 1.5))  # the pace of the operations, not a wait for anything

    def _submit(self) -> None:
        self._made += 1
        job = PlayedJob(self.cluster, self.stage.namespace, f"job-{self._made}")
        job.labels, job.resources = labels(self.random.choice(QUEUES)), {"requests": REQUESTS}
        least = self.random.randint(1, 2)
        script = self.random.choice([SLEEPS, ENDS_SLOWLY])
        job.apply(script, replicas=least + self.random.randint(0, 3), minReplicas=least)
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
            if any(one.must_leave or one.deleting for one in workloads) or sum(counts) != len(pods):
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
    pytestconfig: pytest.Config,
) -> None:
    operations, seed = int(pytestconfig.getoption("operations")), int(pytestconfig.getoption("seed"))
    flavor = stage.flavor()
    for queue in QUEUES:
        stage.queue(queue, 4, flavor)
    life = Life(installed, stage, operator, seed)
    for _ in range(operations):
        life.step()
    # What is asked of others' Workloads nobody gives back here: no operator is theirs.
    while life.others:
        stage.withdraw(life.others.pop())
    played.wait_for(life.balanced, "pods, Workloads and quotas agree", 180)
    assert life.jobs, "another seed"
    for job in life.jobs:
        job.delete("--wait=false")
    played.wait_for(lambda: all(not stage.of_job(job) for job in life.jobs), "no Workload is left", 120)
    played.wait_for(lambda: [stage.used(queue) for queue in QUEUES] == [0, 0], "no quota is used")
