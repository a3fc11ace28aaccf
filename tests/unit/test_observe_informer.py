"""The informer against an API server that a test plays line by line; time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from elasticjob.contract.names import JOB_LABEL, PARTICIPANT_ANNOTATION
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob_operator.observe import informer as informer_module
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import WatchBatch
from elasticjob_operator.observe.errors import Forbidden, Gone, Unavailable
from elasticjob_operator.observe.informer import Informer
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.observe.store import Store
from elasticjob_operator.observe.write_outages import WriteOutages

PATH = "/apis/coordination.k8s.io/v1/leases"


class FakeServer:
    """Lists answer with ``objects``; watches deliver what a test pushes."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.version = 100
        self.lists = 0
        self.watches: list[Mapping[str, str]] = []
        self.refuse_list: Exception | None = None
        self.page_size = 2
        self._stream: asyncio.Queue[WatchBatch | Exception | None] = asyncio.Queue()
        self.write_outages = WriteOutages()

    def lease(self, name: str, uid: str = "", renew: str = "0", record_id: str = "abcd") -> Json:
        self.version += 1
        record = ParticipantRecord(id=record_id, state="Joining", endpoint="10.0.0.1:1").dump()
        return {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": uid or f"uid-{name}",
                "resourceVersion": str(self.version),
                "labels": {JOB_LABEL: "job"},
                "annotations": {PARTICIPANT_ANNOTATION: record},
            },
            "spec": {"holderIdentity": "pod", "renewTime": renew},
        }

    def set(self, name: str, **fields: str) -> Json:
        self.objects[name] = self.lease(name, **fields)
        return self.objects[name]

    def push(self, *events: tuple[str, Json]) -> None:
        self._stream.put_nowait(list(events))

    def end(self, error: Exception | None = None) -> None:
        self._stream.put_nowait(error)

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        assert path == PATH
        assert params is not None
        if self.refuse_list is not None:
            raise self.refuse_list
        self.lists += 1
        start = int(params.get("continue", "0"))
        items = list(self.objects.values())
        more = start + self.page_size < len(items)
        meta = {"resourceVersion": str(self.version), "continue": str(start + self.page_size) if more else ""}
        return {"metadata": meta, "items": items[start : start + self.page_size]}

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
        assert path == PATH
        self.watches.append(dict(params))
        yield []
        while True:
            item = await self._stream.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item

    async def create(self, path: str, body: Json) -> Json:
        raise NotImplementedError

    async def patch(self, *args: Any, **kwargs: Any) -> Json:
        raise NotImplementedError

    async def delete(
        self, path: str, uid: str | None = None, grace: int | None = None, version: int | None = None
    ) -> Json:
        raise NotImplementedError


class Scene:
    def __init__(self, optional: bool = False) -> None:
        self.now = 1000.0
        self.server = FakeServer()
        self.changed: list[str] = []
        self.store: Store[SeenLease] = Store(lambda lease: self.changed.append(lease.name), lambda: self.now)
        self.informer = Informer(
            self.server, PATH, read_lease, self.store, lambda: self.now, JOB_LABEL, optional
        )

    def news(self) -> list[str]:
        found, self.changed[:] = list(self.changed), []
        return found

    def names(self) -> set[str]:
        return set(self.store.of_job("ns", "job"))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)

    async def watched(self, count: int) -> None:
        await self.until(lambda: len(self.server.watches) == count and self.informer.good_since is not None)


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[None]:
    task = asyncio.create_task(scene.informer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    async with running(scene):
        yield scene


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "_LONGEST_PAUSE", 0.0)


async def test_lists_in_pages_then_watches_from_there() -> None:
    scene = Scene()
    for i in range(5):
        scene.server.set(f"p{i}")
    async with running(scene):
        await scene.watched(1)
        assert scene.server.lists == 3
        assert scene.names() == {"p0", "p1", "p2", "p3", "p4"}
        query = scene.server.watches[0]
        assert query["resourceVersion"] == str(scene.server.version)
        assert query["labelSelector"] == JOB_LABEL
        assert 240 <= int(query["timeoutSeconds"]) <= 300
        assert scene.informer.synced.is_set()
        assert sorted(scene.news()) == ["p0", "p1", "p2", "p3", "p4"]


async def test_events_change_the_store_and_are_news(scene: Scene) -> None:
    await scene.watched(1)
    scene.server.push(("ADDED", scene.server.set("a")))
    await scene.until(lambda: scene.names() == {"a"})
    scene.server.push(("MODIFIED", scene.server.set("a", record_id="efgh")))
    await scene.until(lambda: len(scene.changed) == 2)
    seen = scene.store.get("ns", "a")
    assert seen is not None
    assert seen.participant.record is not None
    assert seen.participant.record.id == "efgh"
    scene.server.push(("DELETED", scene.server.set("a")))
    await scene.until(lambda: scene.names() == set())
    assert scene.news() == ["a", "a", "a"]


async def test_a_renewal_moves_the_clock_and_is_no_news(scene: Scene) -> None:
    await scene.watched(1)
    scene.server.push(("ADDED", scene.server.set("a")))
    await scene.until(lambda: scene.news() == ["a"])
    before = scene.store.get("ns", "a")
    assert scene.store.changed_at("ns", "a") == 1000.0
    scene.now = 1010.0
    scene.server.push(("MODIFIED", scene.server.set("a", renew="1")))
    await scene.until(lambda: scene.store.changed_at("ns", "a") == 1010.0)
    assert scene.news() == []
    after = scene.store.get("ns", "a")
    assert before is not None
    assert after is not None
    assert after.version > before.version
    assert after.participant is before.participant, "the same text is not parsed again"


async def test_how_late_a_busy_watch_is_can_be_asked(scene: Scene) -> None:
    """It brings events, of which the newest is seconds old."""
    await scene.watched(1)
    lists = scene.server.lists
    await scene.informer.expect_newest()
    assert scene.server.lists == lists, "without events it would seem late although there is no news"
    scene.server.push(*(("MODIFIED", scene.server.set("a", renew=str(n))) for n in range(200)))
    await scene.until(lambda: scene.store.changed_at("ns", "a") == 1000.0)
    waiting = [("MODIFIED", scene.server.set("a", renew=f"later {n}")) for n in range(3)]
    await scene.informer.expect_newest()
    scene.now += 4.0
    scene.server.push(*waiting[:2])
    await scene.until(lambda: scene.store.changed_at("ns", "a") == 1004.0)
    scene.now += 2.0
    assert scene.informer.late() == 6.0, "an event that is older does not count"
    scene.server.push(waiting[2])
    await scene.until(lambda: scene.informer.late() == 0.0)
    scene.now += 20.0
    lists = scene.server.lists
    await scene.informer.expect_newest()
    assert scene.server.lists == lists


async def test_a_list_that_takes_long_is_a_sign_of_life() -> None:
    scene = Scene()
    for number in range(4):
        scene.server.set(f"p{number}")
    began = asyncio.Event()
    get = scene.server.get

    async def slowly(path: str, params: Mapping[str, str] | None = None) -> Json:
        if params and params.get("continue"):
            began.set()
            await asyncio.Event().wait()
        return await get(path, params)

    scene.server.get = slowly  # type: ignore[method-assign]
    async with running(scene):
        await began.wait()
        assert not scene.informer.synced.is_set()
        assert scene.informer.last_event_at == 1000.0


async def test_a_bookmark_moves_the_version_and_nothing_else(scene: Scene) -> None:
    await scene.watched(1)
    scene.now = 1060.0
    scene.server.version = 500
    scene.server.push(("BOOKMARK", {"kind": "Lease", "metadata": {"resourceVersion": "500"}}))
    await scene.until(lambda: scene.informer.last_event_at == 1060.0)
    scene.server.end()
    await scene.watched(2)
    assert scene.server.watches[1]["resourceVersion"] == "500"
    assert scene.news() == []


@pytest.mark.parametrize("second", [True, False])
async def test_410_lists_again_and_finds_what_vanished(second: bool) -> None:
    scene = Scene()
    scene.server.set("a")
    scene.server.set("b")
    async with running(scene):
        await scene.watched(1)
        scene.news()
        del scene.server.objects["a"]
        scene.server.set("c")
        if second:
            scene.server.set("b", record_id="efgh")
        scene.server.version += 10
        scene.now = 1100.0
        scene.server.end(Gone("WATCH", 410, "Expired", "too old resource version"))
        await scene.watched(2)
        assert scene.names() == {"b", "c"}
        assert sorted(scene.news()) == (["a", "b", "c"] if second else ["a", "c"])
        assert scene.informer.good_since == 1100.0, "clocks start again after a relist"
        assert scene.informer.gaps == 2


@pytest.mark.parametrize(
    ("error", "good_since", "gaps"),
    [(None, 1000.0, 1), (Unavailable("WATCH", 0, "Reset", "connection reset"), 1300.0, 2)],
    ids=["ended by the server", "a broken connection"],
)
async def test_a_watch_that_ends_is_opened_again_without_a_list_and_one_that_breaks_is_a_gap(
    scene: Scene, error: Exception | None, good_since: float, gaps: int
) -> None:
    await scene.watched(1)
    scene.now = 1300.0
    scene.server.end(error)
    await scene.watched(2)
    assert scene.informer.good_since == good_since
    assert scene.informer.gaps == gaps
    assert scene.server.lists == 1


async def test_a_list_that_fails_keeps_what_is_known() -> None:
    scene = Scene()
    scene.server.set("a")
    async with running(scene):
        await scene.watched(1)
        scene.server.refuse_list = Unavailable("GET", 503, "", "no etcd")
        scene.server.end(Gone("WATCH", 410, "Expired", ""))
        await scene.until(lambda: scene.informer.good_since is None)
        await asyncio.sleep(0.01)
        assert scene.names() == {"a"}
        scene.server.refuse_list = None
        await scene.watched(2)


async def test_an_optional_resource_may_be_forbidden() -> None:
    scene = Scene(optional=True)
    scene.server.refuse_list = Forbidden("GET", 403, "Forbidden", "no")
    async with running(scene):
        await scene.until(scene.informer.synced.is_set)
        assert scene.informer.unavailable


async def test_an_answer_of_ours_is_not_undone_by_an_older_event_or_list(scene: Scene) -> None:
    await scene.watched(1)
    older, newer = scene.server.lease("a"), scene.server.lease("a", record_id="efgh")
    scene.store.put(read_lease(newer), quiet=True)
    scene.server.push(("ADDED", older), ("ADDED", scene.server.set("b")))
    await scene.until(lambda: scene.names() == {"a", "b"})
    seen = scene.store.get("ns", "a")
    assert seen is not None
    assert seen.version == int(newer["metadata"]["resourceVersion"])
    assert scene.news() == ["b"], "what we wrote ourselves is no news"
    # A list from before our write does not remove its result; a later one does.
    scene.store.drop_others(set(), version=seen.version - 1)
    assert "a" in scene.names()
    scene.store.drop_others(set(), version=seen.version)
    assert "a" not in scene.names()


async def test_the_successor_of_the_same_name_survives_the_end_of_the_former(scene: Scene) -> None:
    await scene.watched(1)
    former = scene.server.set("a", uid="one")
    scene.server.push(("ADDED", former))
    await scene.until(lambda: scene.names() == {"a"})
    scene.store.put(read_lease(scene.server.lease("a", uid="two")), quiet=True)
    scene.server.push(("DELETED", former), ("ADDED", scene.server.set("b")))
    await scene.until(lambda: "b" in scene.names())
    seen = scene.store.get("ns", "a")
    assert seen is not None
    assert seen.uid == "two"


async def test_rubbish_does_not_end_the_informer(scene: Scene) -> None:
    await scene.watched(1)
    scene.server.push(("MODIFIED", {"no": "metadata"}))
    await scene.watched(2)
    assert scene.server.lists == 2
