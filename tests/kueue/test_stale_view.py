"""What an operator decided upon must still be so when it writes: an old view deletes nothing, and makes
nothing smaller, that has changed since."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob_operator.act.job_state import QueueState
from elasticjob_operator.act.workloads import WorkloadWriter
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.credentials import Credentials
from elasticjob_operator.plan.queue.changes import Change, Release, Resize
from elasticjob_operator.plan.queue.workloads import Workload
from elasticjob_operator.plan.state.model import Job, JobSpec
from tests.kueue.stage import DEADLINE, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


class View:
    """An operator's view of one Workload, and what it writes by it."""

    def __init__(self, stage: Stage, client: Client) -> None:
        self._stage = stage
        self._job = Job(stage.namespace, "mnist", "uid", 1, JobSpec())
        self.again: list[str] = []
        self.cache = ClusterCache(
            client,
            (stage.namespace,),
            lambda _namespace, job: self.again.append(job),
            time.monotonic,
            (),
            True,
        )
        self._writer = WorkloadWriter(client, self.cache)

    def workload(self) -> Workload:
        found = self._stage.workload("mine")
        assert found is not None
        return found

    async def write(self, *changes: Change) -> None:
        await self._writer.write(self._job, changes, QueueState())


@pytest.fixture
async def view(stage: Stage, installed: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[View]:
    """Of a Workload that waits."""
    monkeypatch.setenv("KUBECONFIG", str(installed.kubeconfig))
    client = Client(Credentials())
    stage.queue("a", 2, stage.flavor())
    stage.ask("first", "a", 2, priority=1000)
    wait_for(lambda: stage.admitted("first"), DEADLINE, "another is admitted")
    stage.ask("mine", "a", 2)
    yield View(stage, client)
    await client.aclose()


def admit(stage: Stage) -> None:
    stage.withdraw("first")
    wait_for(lambda: stage.admitted("mine"), DEADLINE, "it is admitted")


async def test_what_was_admitted_meanwhile_is_not_deleted(stage: Stage, view: View) -> None:
    waits = view.workload()
    admit(stage)
    await view.write(Release(waits), Resize(waits, 1))
    assert (view.workload().live, view.workload().count) == (True, 2)
    assert "mnist" in view.again, "the next pass decides"
    seen = view.cache.workloads.get(stage.namespace, "mine")
    assert seen is not None
    assert seen.workload.live
    await view.write(Release(seen.workload))
    assert stage.workload("mine") is None


async def test_what_has_another_size_by_now_is_not_resized(
    stage: Stage, view: View, installed: Cluster
) -> None:
    admit(stage)
    wait_for(lambda: stage.used("a") == 2, DEADLINE, "its quota is counted")
    before = view.workload()
    smaller = json.dumps([{"op": "replace", "path": "/spec/podSets/0/count", "value": 1}])
    installed.kubectl("-n", stage.namespace, "patch", "workload", "mine", "--type=json", "-p", smaller)
    await view.write(Resize(before, 2))
    assert view.workload().count == 1
    assert "mnist" in view.again


async def test_what_is_gone_is_forgotten(stage: Stage, view: View) -> None:
    there = view.workload()
    stage.withdraw("mine")
    await view.write(Release(there))
    assert view.cache.workloads.get(stage.namespace, "mine") is None
