"""The limiter is fair between namespaces, and no operation waits for a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from elasticjob_operator.observe import fair_limiter
from elasticjob_operator.observe.fair_limiter import FairLimiter


@pytest.fixture(autouse=True)
def nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is; but for tests that say so."""
    monkeypatch.setattr(fair_limiter, "_QUICK_SECONDS", 3600.0)


class Scene:
    def __init__(self, at_once: int, slow: int, slow_in_all: int) -> None:
        self.limiter = FairLimiter(at_once, slow, slow_in_all)
        self.began: list[str] = []
        self.end = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, namespace: str, times: int = 1) -> list[asyncio.Task[None]]:
        made = [asyncio.create_task(self._one(namespace)) for _ in range(times)]
        self.tasks += made
        return made

    async def _one(self, namespace: str) -> None:
        async with self.limiter.turn(namespace):
            self.began.append(namespace)
            await self.end.wait()

    async def settled(self) -> dict[str, int]:
        for _ in range(10):
            await asyncio.sleep(0)
        return {name: self.began.count(name) for name in sorted(set(self.began))}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation is quick, however busy this machine is, unless a test says otherwise."""
    monkeypatch.setattr(fair_limiter, "_QUICK_SECONDS", 600.0)


@pytest.fixture
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    scene = Scene(at_once=4, slow=5, slow_in_all=getattr(request, "param", 100))
    yield scene
    for task in scene.tasks:
        task.cancel()
    await asyncio.gather(*scene.tasks, return_exceptions=True)
    assert scene.limiter.idle()


async def test_one_busy_namespace_leaves_a_turn_for_another(scene: Scene) -> None:
    scene.ask("busy", 100)
    assert await scene.settled() == {"busy": 3}
    scene.ask("other")
    assert await scene.settled() == {"busy": 3, "other": 1}


async def test_namespaces_that_wait_take_turns(scene: Scene) -> None:
    scene.ask("a", 50)
    scene.ask("b", 50)
    await scene.settled()
    scene.ask("c", 2)
    first = scene.tasks[:1] + scene.tasks[50:51]
    for task in first:
        task.cancel()
    await scene.settled()
    assert scene.began[4:] in (["c", "a"], ["a", "b"], ["b", "c"], ["a", "c"], ["c", "b"])


@pytest.mark.parametrize("others", [1, 50])
async def test_what_is_slow_gives_its_turn_back_and_is_bounded_by_namespace(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setattr(fair_limiter, "_QUICK_SECONDS", 0.01)

    scene.ask("behind-a-webhook", 100)
    for _ in range(20):
        await asyncio.sleep(0.01)
    held = (await scene.settled())["behind-a-webhook"]
    assert 5 <= held < 5 + 3, "no more of them, however long it takes"
    for number in range(others):
        scene.ask(f"other-{number}")
    for _ in range(20 + others):
        await asyncio.sleep(0.01)
    assert sum((await scene.settled()).values()) == held + others


@pytest.mark.parametrize("scene", [10], indirect=True)
async def test_where_everything_is_slow_there_is_a_bound_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_limiter, "_QUICK_SECONDS", 0.01)

    for number in range(50):
        scene.ask(f"ns-{number}", 3)
    for _ in range(30):
        await asyncio.sleep(0.01)
    assert 10 <= sum((await scene.settled()).values()) <= 10 + 4


async def test_who_is_cancelled_in_the_queue_takes_no_turn(scene: Scene) -> None:
    scene.ask("a", 3)
    gone = scene.ask("a", 10)
    await scene.settled()
    for task in gone:
        task.cancel()
    last = scene.ask("a")
    await scene.settled()
    assert scene.began.count("a") == 3
    scene.end.set()
    await asyncio.gather(*last)
    assert scene.began.count("a") == 4


async def test_a_turn_that_is_given_to_who_is_cancelled_at_that_moment_is_given_on(scene: Scene) -> None:
    first = scene.ask("a", 3)
    waiting = scene.ask("a", 2)
    await scene.settled()
    first[0].cancel()
    await asyncio.sleep(0)  # its end gives the turn to the first that waits
    waiting[0].cancel()
    await scene.settled()
    assert scene.began.count("a") == 4
