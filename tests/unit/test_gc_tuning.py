"""Full collections look at what is new, and nothing that can be freed stays."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from elasticjob_operator.gc_tuning import MIDDLE, WHOLE_SECONDS, YOUNG, GcTuning

MANY = 4 * YOUNG * MIDDLE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Node:
    """May be part of a circle."""

    other: Node | None = None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def tuning(clock: Clock) -> AsyncIterator[GcTuning]:
    gc.collect()
    found = GcTuning(asyncio.get_running_loop(), clock)
    found.start()
    yield found
    found.stop()


async def containers() -> list[list[int]]:
    """As an operator makes them that lists many jobs."""
    found: list[list[int]] = []
    while len(found) < MANY:
        found += [[number] for number in range(YOUNG)]
        await asyncio.sleep(0)
    return found


@pytest.mark.usefixtures("tuning")
async def test_what_has_outlived_a_collection_is_looked_at_no_more() -> None:
    before = gc.get_freeze_count()
    kept = await containers()
    assert gc.get_freeze_count() - before > len(kept) / 2
    assert len(gc.get_objects()) < len(kept)


@pytest.mark.usefixtures("tuning")
async def test_what_there_is_at_the_start_is_looked_at_no_more() -> None:
    assert gc.get_freeze_count() > 10 * len(gc.get_objects())


@pytest.mark.usefixtures("tuning")
async def test_new_circles_are_freed() -> None:
    one = Node()
    one.other = Node()
    one.other.other = one
    gone = weakref.ref(one)
    del one
    await containers()
    assert gone() is None


@pytest.mark.usefixtures("tuning")
async def test_frozen_circles_are_freed_once_in_a_while(clock: Clock) -> None:
    one = Node()
    one.other = Node()
    one.other.other = one
    gone = weakref.ref(one)
    kept = await containers()
    del one
    kept += await containers()
    assert gone() is not None
    clock.now = WHOLE_SECONDS + 1
    kept += await containers()
    assert gone() is None


async def test_frozen_circles_are_freed_when_there_are_twice_as_many_objects(
    tuning: GcTuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_operator.gc_tuning.FEW", 0)
    tuning.start()
    one = Node()
    one.other = Node()
    one.other.other = one
    gone = weakref.ref(one)
    kept = await containers()
    del one
    tuning.give_back()
    assert gone() is not None, "there are a few more"
    kept += [[number] for number in range(gc.get_freeze_count() + MANY)]
    await containers()
    tuning.give_back()
    assert gone() is None


async def test_in_the_end_all_is_as_python_has_it() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    tuning = GcTuning(asyncio.get_running_loop())
    tuning.start()
    tuning.stop()
    tuning.stop()
    assert (gc.get_threshold(), list(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0
