"""Lists, watches and answers meet in one store: none may undo what another knows better."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, cast

from elasticjob.contract.names import ATTEMPT_LABEL, JOB_LABEL, SLOT_LABEL
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api, WatchBatch
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import Gone
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.state.model import Job, JobSpec


def pod(namespace: str, version: int, name: str = "job-0-0") -> Json:
    labels = {JOB_LABEL: "job", SLOT_LABEL: "0", ATTEMPT_LABEL: "0"}
    meta = {
        "namespace": namespace,
        "name": name,
        "uid": f"{namespace}-{name}-{version}",
        "labels": labels,
        "resourceVersion": str(version),
        "ownerReferences": [
            {"kind": "ElasticJob", "name": "job", "uid": f"job-{namespace}", "controller": True}
        ],
    }
    return {"metadata": meta, "spec": {}, "status": {"phase": "Pending"}}


def lease(namespace: str, version: int, name: str = "job-0-0") -> Json:
    meta = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "labels": {JOB_LABEL: "job"}}
    return {"metadata": {**meta, "resourceVersion": str(version)}, "spec": {"holderIdentity": "pod"}}


class Server:
    """Lists ``pods`` and ``leases`` as of ``version``; each watch ends with a 410 when ``too_old`` is set."""

    def __init__(self) -> None:
        self.write_outages = WriteOutages()
        self.pods: list[Json] = []
        self.leases: list[Json] = []
        self.version = 100
        self.lists: dict[str, int] = {}
        self.too_old: dict[str, asyncio.Event] = {}

    async def get(self, path: str, _query: Mapping[str, str] | None = None) -> Json:
        await asyncio.sleep(0)
        self.lists[path] = self.lists.get(path, 0) + 1
        items = {"pods": self.pods, "leases": self.leases}.get(path.rpartition("/")[2], [])
        namespace = path.partition("/namespaces/")[2].partition("/")[0]
        items = [raw for raw in items if namespace in ("", raw["metadata"]["namespace"])]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    async def watch(self, path: str, _query: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
        yield []
        self.too_old[path] = asyncio.Event()
        await self.too_old[path].wait()
        raise Gone(f"GET {path}", 410, "Expired", "too old")


class Scene:
    """A world whose informers run."""

    def __init__(self, *namespaces: str) -> None:
        self.server = Server()
        self.cache = ClusterCache(cast(Api, self.server), namespaces, lambda *_: None, lambda: 1000.0)

    async def __aenter__(self) -> Scene:
        self._tasks = [asyncio.create_task(informer.run()) for informer in self.cache.informers()]
        await self.cache.synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def list_again(self, path: str) -> None:
        """The watch is too old, for an API server that was restarted, say."""
        before = self.server.lists[path]
        async with asyncio.timeout(5):
            while path not in self.server.too_old:
                await asyncio.sleep(0)
            self.server.too_old.pop(path).set()
            while self.server.lists[path] == before or path not in self.server.too_old:
                await asyncio.sleep(0)

    def pods(self, namespace: str) -> list[str]:
        job = Job(namespace, "job", f"job-{namespace}", 1, JobSpec(template={"spec": {}}))
        return [seen.name for seen in self.cache.observe(job).pods]

    def leases(self, namespace: str) -> list[str]:
        job = Job(namespace, "job", f"job-{namespace}", 1, JobSpec(template={"spec": {}}))
        return list(self.cache.observe(job).leases)


async def test_a_list_of_one_namespace_says_nothing_of_the_others() -> None:
    """An operator of two namespaces lists each by itself, when it starts and after a 410."""
    scene = Scene("ours", "theirs")
    scene.server.pods = [pod("ours", 7), pod("theirs", 8)]
    scene.server.leases = [lease("ours", 9), lease("theirs", 10)]
    async with scene:
        for namespace in ("ours", "theirs"):
            assert scene.pods(namespace) == scene.leases(namespace) == ["job-0-0"], namespace
        await scene.list_again("/api/v1/namespaces/theirs/pods")
        assert scene.pods("ours") == ["job-0-0"]
        scene.server.pods = []
        await scene.list_again("/api/v1/namespaces/theirs/pods")
        assert (scene.pods("ours"), scene.pods("theirs")) == (["job-0-0"], [])


async def test_an_answer_that_is_later_than_a_list_brings_no_pod_back() -> None:
    """The pod was made by us and deleted by somebody at once, and the watch was broken meanwhile. The list
    said nothing of it before our answer came: no event would ever end it again."""
    async with Scene() as scene:
        made = pod("ns", 105)
        scene.server.version = 110
        await scene.list_again("/api/v1/pods")
        scene.cache.saw_pod(made)
        assert scene.pods("ns") == []
        scene.cache.saw_pod(pod("ns", 111))
        assert scene.pods("ns") == ["job-0-0"], "one that was made since is there"
        scene.cache.saw_lease(lease("ns", 55))
        assert scene.leases("ns") == [], "so is a Lease"


async def test_a_look_that_is_later_than_a_list_brings_no_pod_back() -> None:
    """What the API server was asked for one job may be answered after the list that came later."""
    async with Scene() as scene:
        listed: dict[str, Any] = {"metadata": {"resourceVersion": "105"}, "items": [pod("ns", 104)]}
        scene.server.version = 110
        await scene.list_again("/api/v1/pods")

        async def late(path: str, _query: Mapping[str, str] | None = None) -> Json:
            return listed if path.endswith("/pods") else {"metadata": listed["metadata"], "items": []}

        scene.server.get = late  # type: ignore[method-assign]
        await scene.cache.read_again(Job("ns", "job", "job-ns", 1, JobSpec(template={"spec": {}})))
        assert scene.pods("ns") == []


async def test_versions_of_an_etcd_that_was_restored_are_believed() -> None:
    """They begin lower again. A list is always right about what is there."""
    async with Scene() as scene:
        scene.server.version, scene.server.pods = 50, [pod("ns", 40)]
        await scene.list_again("/api/v1/pods")
        assert scene.pods("ns") == ["job-0-0"]
        scene.cache.saw_pod(pod("ns", 51, "job-1-0"))
        assert scene.pods("ns") == ["job-0-0", "job-1-0"]
