"""Two operators that share the namespaces of a cluster: each knows, writes and mends its own jobs only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import WatchBatch
from elasticjob_operator.plan.planner import plan
from tests.integration.shell.scene import Operator, Scene, Wire, WiredClient, eventually, until

pytestmark = pytest.mark.cluster


class RecordingClient(WiredClient):
    """Notes the path of every request."""

    paths: set[str]

    async def _request(self, method: str, path: str, **more: Any) -> Json:
        self.paths.add(path)
        return await super()._request(method, path, **more)

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
        self.paths.add(path)
        return super().watch(path, params)


@asynccontextmanager
async def operator_of(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Operator, set[str]]]:
    """The operator of that namespace, and what it asks for."""
    paths: set[str] = set()
    made = type("Client", (RecordingClient,), {"paths": paths})
    monkeypatch.setattr("tests.integration.shell.scene.WiredClient", made)
    operator = Operator(scene.namespace, plan, Wire())  # type: ignore[arg-type]
    operator.start()
    try:
        yield operator, paths
    finally:
        await operator.stop()


def beyond(paths: set[str], namespace: str) -> set[str]:
    """What is not of that namespace, but for the nodes, which have none."""
    return {path for path in paths if f"/namespaces/{namespace}/" not in path} - {"/api/v1/nodes"}


async def served(scene: Scene) -> None:
    """Wait until the job has a status, a round Lease and its pods."""
    await scene.round_is(0, "Broken")
    await scene.pods_are("mnist-0-0", "mnist-1-0")
    assert (await scene.job())["status"]["observedGeneration"] == 1


async def replaced(job: Scene, uid: str) -> str:
    """The name of the pod that the job has in place of this one, beside mnist-0-0."""
    found: list[str] = []

    async def there() -> bool:
        pods = (await job.admin.get(job.pods))["items"]
        found[:] = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"] != "mnist-0-0"]
        return len(pods) == 2 and uid not in {pod["metadata"]["uid"] for pod in pods}

    await eventually(there, "the pod has been replaced")
    (name,) = found
    return name


async def test_two_operators_leave_each_others_jobs_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{scene.namespace}-b"
    await scene.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    other = Scene(name)
    try:
        await scene.make_job()
        await other.make_job()
        async with operator_of(scene, monkeypatch) as (first, of_first):
            await served(scene)
            assert (await other.job())["status"] == {"observedGeneration": -1}, (
                "its operator has not come yet"
            )
            assert not await other.pod_names()
            async with operator_of(other, monkeypatch) as (second, of_second):
                await served(other)
                await second.controller.source.relist(other.namespace)

                # What one mends, the other does not even see. (A pod of which the status says nothing yet may
                # come again under its name.)
                await until(lambda: len(second.controller.cache.pods) == 2, "it has seen its pods")
                pod = f"{other.pods}/mnist-1-0"
                first_uid = (await other.admin.get(pod))["metadata"]["uid"]
                await other.admin.delete(pod, grace=0)
                replacement = await replaced(other, first_uid)
            await first.controller.source.relist(scene.namespace)

            # An operator that is away is not stood in for.
            await other.admin.delete(f"{other.pods}/mnist-0-0", grace=0)
            async with first.one_more_pass():
                await scene.poke()

            async def gone() -> bool:
                return await other.pod_names() == {replacement}

            await eventually(gone, "the pod of the other's job is gone")
        assert {f"/api/v1/namespaces/{scene.namespace}/pods", "/api/v1/nodes"} <= of_first
        assert not beyond(of_first, scene.namespace)
        assert not beyond(of_second, other.namespace)
        assert [entry.view.job.namespace for entry in first.controller.registry] == [scene.namespace]
    finally:
        await scene.admin.delete(f"/api/v1/namespaces/{name}")
        await other.admin.aclose()
