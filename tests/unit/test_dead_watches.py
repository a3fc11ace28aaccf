"""The operator's connections may outlive the API server at their other end: a proxy answers for it."""

# shows: one API server of several fails silently, with the connections of the operator

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.observe import cluster_cache as cache_module
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import Unavailable
from elasticjob_operator.observe.fields import version_of
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.state.model import Job, JobSpec
from tests.unit.test_observe_client import event, served, streaming
from tests.unit.test_observe_informer import Scene, running

JOB = Job("ns", "job", "uid-job", 1, JobSpec(template={}))
LEASES = "/apis/coordination.k8s.io/v1"


async def test_another_watch_goes_on_where_the_dead_one_ended() -> None:
    scene = Scene()
    async with running(scene):
        await scene.watched(1)
        scene.server.push(("ADDED", scene.server.lease("a")))
        await scene.until(lambda: scene.names() == {"a"})
        scene.now = 1030.0
        scene.informer.reopen(unless_since=1000.0)
        await asyncio.sleep(0.01)
        assert len(scene.server.watches) == 1, "it has been heard since"
        scene.informer.reopen(unless_since=1020.0)
        await scene.watched(2)
        assert scene.server.watches[1]["resourceVersion"] == str(scene.server.version)
        assert (scene.server.lists, scene.informer.gaps) == (1, 1)
        assert scene.informer.good_since == 1000.0, "all that was missed comes at once"
        scene.informer.reopen(unless_since=1020.0)
        await asyncio.sleep(0.01)
        assert len(scene.server.watches) == 2, "it was opened since"
        scene.server.push(("ADDED", scene.server.lease("b")))
        await scene.until(lambda: scene.names() == {"a", "b"})


async def test_a_watch_that_ended_otherwise_is_not_ended_again() -> None:
    scene = Scene()
    async with running(scene):
        await scene.watched(1)
        scene.now = 1030.0
        scene.informer.reopen(unless_since=1020.0)
        scene.informer.reopen(unless_since=1020.0)
        scene.server.end(Unavailable("WATCH", 0, "Reset", "connection reset"))
        await scene.until(lambda: len(scene.server.watches) > 1)
        await scene.until(lambda: scene.informer.good_since is not None)
        assert scene.server.lists == 1


class DeadWatches:
    """An API server that lists, and whose watches bring nothing."""

    def __init__(self) -> None:
        self.write_outages = WriteOutages()
        self.opened: list[str] = []
        self.version = 100

    async def get(self, path: str, _query: Any) -> dict[str, Any]:
        meta = {
            "namespace": "ns",
            "name": "job-0-0",
            "uid": "u",
            "resourceVersion": str(self.version),
            "labels": {JOB_LABEL: "job"},
        }
        items = [{"metadata": meta, "spec": {}}] if path.endswith("/leases") and self.version > 100 else []
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    async def watch(self, path: str, query: Any) -> Any:
        self.opened.append(f"{path} {query['resourceVersion']}")
        yield []
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("sign", ["a list shows what it has not brought", "a request got no answer"])
async def test_a_watch_that_may_be_dead_is_opened_anew(monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    monkeypatch.setattr(cache_module, "_PULSE_SECONDS", 0.0)
    api = DeadWatches()
    now = SimpleNamespace(time=1000.0)

    cache = ClusterCache(cast(Any, api), (), lambda *_: None, lambda: now.time)
    tasks = [asyncio.create_task(work) for work in (*(i.run() for i in cache.informers()), cache.pulse())]
    await _until(lambda: len(api.opened) == 4 and all(i.good_since for i in cache.informers()))
    if sign.startswith("a list"):
        api.version = 107
        await cache.read_again(JOB)
        expected = [f"{LEASES}/leases 100"]
    else:
        api.write_outages.no_answer("/x", 1001.0, 1001.0)
        watched = ("/api/v1/pods", f"{LEASES}/leases", "/api/v1/serviceaccounts", "/api/v1/nodes")
        expected = [f"{path} 100" for path in watched]
    for _ in range(6):
        now.time += 1.0
        await asyncio.sleep(0.01)
    await _until(lambda: len(api.opened) == 4 + len(expected))
    assert sorted(api.opened[4:]) == sorted(expected)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_watch_gets_a_connection_of_its_own() -> None:
    used: dict[str, set[Any]] = {"/x": set(), "/w": set()}
    stream = streaming(event("ADDED", name="a", metadata={"resourceVersion": "1"}))

    async def answer(request: web.Request) -> web.StreamResponse:
        used[request.path].add(request.transport)
        return await stream(request) if request.path == "/w" else web.json_response({})

    async with served(answer) as (client, _):
        await client.get("/x")
        for _ in range(2):
            async for batch in client.watch("/w", {}):
                assert all(version_of(item["metadata"]) == 1 for _, item in batch)
        await client.get("/x")
        assert (len(used["/x"]), len(used["/w"])) == (1, 2)
        assert not used["/x"] & used["/w"]


async def test_after_silence_no_connection_of_before_is_used() -> None:
    """Several are kept, all dead: one request waits in vain, and not one after the other."""
    dead: set[Any] = set()
    seen: set[Any] = set()
    slow = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.transport in dead:
            await asyncio.sleep(30)
        seen.add(request.transport)
        if request.path == "/hangs":
            await asyncio.sleep(30)
        await slow.wait()
        return web.json_response({})

    async with served(answer, timeout=2.0) as (client, _):
        several = asyncio.gather(*(client.get("/x") for _ in range(5)))
        while len(seen) < 5:
            await asyncio.sleep(0.001)
        slow.set()
        await several
        dead.update(seen)
        with pytest.raises(Unavailable):
            await client.get("/x")
        assert await client.get("/x") == {}, "by another dead one it would be unavailable, too"
        alive = seen - dead
        hanging = asyncio.create_task(client.get("/hangs"))
        while not hanging.done():
            await client.get("/x")
        with pytest.raises(Unavailable):
            await hanging
        await client.get("/x")
        assert alive < seen - dead
        assert len(seen - dead) <= 3, "the others have been answered meanwhile: their connections stay"
