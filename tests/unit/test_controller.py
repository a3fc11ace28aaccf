"""When passes are made. What a pass does is in ``tests/integration/shell``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from elasticjob_operator.act.job_state import Stale, Vanished
from elasticjob_operator.act.owned_kinds import NETWORK_POLICY
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.controller.registry import JobEntry
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Forbidden, Unavailable
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.settings import Settings

FORBIDDEN = Forbidden("GET", 403, "Forbidden", "no")
JOB_ONLY = {"spec": {"policyTypes": ["Ingress"]}}


class EmptyCluster:
    """An API server that has nothing, and takes Events."""

    def __init__(self) -> None:
        self.write_outages = WriteOutages()
        self.events: list[str] = []

    async def get(self, *_: object) -> Json:
        return {"metadata": {"resourceVersion": "100"}, "items": []}

    async def create(self, _path: str, body: Json) -> Json:
        self.events.append(body["reason"])
        return body

    async def patch(self, _path: str, body: Json, *_: object) -> Json:
        """An Event that is repeated counts up."""
        return body


class PlayedPasses:
    """``results``: what the passes return or raise, in order. ``made``: over which job, and whether there was
    news of it."""

    def __init__(self) -> None:
        self.results: list[float | Exception] = []
        self.made: list[tuple[str, bool]] = []
        self.cancelled = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.passes = 0

    async def reconcile(self, entry: JobEntry, hurried: bool) -> float | None:
        self.made.append((entry.request.name, hurried))
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        result = self.results.pop(0) if self.results else None
        if isinstance(result, Exception):
            raise result
        return result


class Scene:
    """A controller that leads, and knows the job "a"."""

    def __init__(self, settings: Settings) -> None:
        self.api = EmptyCluster()
        self.passes = PlayedPasses()
        self.controller = Controller(cast(Api, self.api), settings)
        self.controller.reconciler = self.passes  # type: ignore[assignment]
        self.changed("a")
        self.controller.queue.open()

    def changed(self, name: str, version: int = 1, **status: Any) -> None:
        meta = {"name": name, "namespace": "here", "uid": f"uid-{name}", "resourceVersion": str(version)}
        self.controller.source.changed({"metadata": meta, "spec": {}, "status": status})

    def enqueue(self, *names: str) -> None:
        for name in names:
            self.controller.enqueue("here", name)

    def entry(self) -> JobEntry:
        entry = self.controller.registry.get("here", "a")
        assert entry is not None
        return entry

    async def until(self, passes: int) -> None:
        while len(self.passes.made) < passes or self.controller.queue.working:
            await asyncio.sleep(0.001)

    async def events_are_sent(self) -> None:
        """Those that wait."""
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "events"))

    async def nothing_more(self, passes: int) -> None:
        """All that is ready has been done, as far as it may."""
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(self.passes.made) == passes


@pytest.fixture
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    scene = Scene(getattr(request, "param", Settings()))
    yield scene
    await scene.controller.aclose()


async def test_a_pass_says_when_the_next_is_due_without_news(scene: Scene) -> None:
    scene.passes.results = [0.01]
    scene.enqueue("a")
    await scene.until(passes=2)
    assert scene.passes.made == [("a", True), ("a", False)]


async def test_a_pass_that_fails_is_made_again_and_people_are_told_once(scene: Scene) -> None:
    scene.passes.results = [FORBIDDEN, OverflowError()]
    scene.enqueue("a")
    await scene.until(passes=2)
    assert scene.controller.queue.failures(scene.entry().request) == 2
    await scene.until(passes=3)
    assert scene.passes.made == [("a", True), ("a", False), ("a", False)]
    assert scene.controller.queue.failures(scene.entry().request) == 0
    assert scene.api.events == ["ReconcileFailed"]


async def test_what_may_succeed_in_a_moment_is_made_again_and_not_told(scene: Scene) -> None:
    scene.passes.results = [Unavailable("GET", 503, "", "busy", retry_after=0.3), Stale("read again")]
    began = scene.controller.clock()
    scene.enqueue("a")
    await scene.until(passes=2)
    assert scene.controller.clock() - began >= 0.3
    await scene.until(passes=3)
    assert scene.api.events == []


async def test_a_job_that_has_vanished_is_forgotten(scene: Scene) -> None:
    scene.passes.results = [Vanished()]
    scene.enqueue("a")
    await scene.until(passes=1)
    assert len(scene.controller.registry) == 0


@pytest.mark.parametrize("scene", [Settings(max_passes=1)], indirect=True)
async def test_news_while_a_job_waits_for_its_turn_costs_no_second_pass(scene: Scene) -> None:
    scene.passes.go_on.clear()
    scene.enqueue("a")
    await scene.nothing_more(1)
    for _ in range(3):
        scene.changed("b")
        scene.enqueue("b")
        await scene.nothing_more(1)
    scene.passes.go_on.set()
    await scene.nothing_more(2)
    assert scene.passes.made == [("a", True), ("b", True)]


async def test_an_operator_that_follows_breaks_off_its_passes_and_makes_none(scene: Scene) -> None:
    scene.passes.go_on.clear()
    scene.enqueue("a")
    await scene.nothing_more(1)
    await scene.controller.follow()
    assert scene.passes.cancelled == 1
    assert scene.controller.under_way() == {}
    scene.enqueue("a")
    scene.changed("a", 2)
    await scene.nothing_more(1)


async def test_only_the_operator_that_leads_tells_of_a_job_that_can_not_be_read(scene: Scene) -> None:
    await scene.controller.follow()
    scene.changed("odd", accounts=5)
    await scene.nothing_more(0)
    assert scene.api.events == []
    scene.controller.queue.open()
    scene.changed("odd", accounts=5)
    await scene.nothing_more(0)
    await scene.events_are_sent()
    assert scene.api.events == ["StatusUnreadable"]


async def test_a_job_of_a_newer_operator_is_left_alone_and_it_says_so_once(scene: Scene) -> None:
    await scene.controller.follow()
    scene.controller.queue.open()
    for version in (1, 2):
        scene.changed("new", version, internal={"version": 9, "minReaderVersion": 9})
        await scene.nothing_more(0)
    await scene.events_are_sent()
    assert scene.api.events == ["StatusTooNew"]


async def test_what_a_job_owns_is_not_compared_during_a_pass_that_may_be_writing_it(scene: Scene) -> None:
    scene.passes.go_on.clear()
    scene.enqueue("a")
    await scene.nothing_more(1)
    owned = scene.entry().state.owned
    owned.written[NETWORK_POLICY] = JOB_ONLY
    await scene.controller.source.compare_all_owned()
    assert owned.written[NETWORK_POLICY] == JOB_ONLY
    scene.passes.go_on.set()
    await scene.until(passes=1)
    await scene.controller.source.compare_all_owned()
    assert owned.written[NETWORK_POLICY] != JOB_ONLY
