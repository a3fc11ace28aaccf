"""Full collections look at what is new, and nothing that can be freed stays."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from elasticjob_operator.gc_tuning import LITTLE, MIDDLE, WHOLE_SECONDS, YOUNG, GcTuning, resident_bytes

MANY = 4 * YOUNG * MIDDLE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Node:
    """May be part of a reference cycle."""

    other: Node | None = None


def cycle() -> tuple[Node, weakref.ref[Node]]:
    """One of two that refer to each other, and whether it is there."""
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one, weakref.ref(one)


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
async def test_new_cycles_are_freed() -> None:
    one, there = cycle()
    del one
    await containers()
    assert there() is None


@pytest.mark.usefixtures("tuning")
async def test_frozen_cycles_are_freed_once_in_a_while(clock: Clock) -> None:
    one, there = cycle()
    kept = await containers()
    del one
    kept += await containers()
    assert there() is not None
    clock.now = WHOLE_SECONDS + 1
    kept += await containers()
    assert there() is None


async def test_frozen_cycles_are_freed_when_the_process_has_grown() -> None:
    megabytes = 100
    tuning = GcTuning(asyncio.get_running_loop(), resident=lambda: megabytes * 2**20)
    tuning.start()
    try:
        one, there = cycle()
        kept = await containers()
        del one
        megabytes = 150
        tuning.give_back()
        assert there() is not None, "it has grown by half, but by little"
        megabytes = 1 + 150 + LITTLE // 2**20
        tuning.give_back()
        assert there() is None
        assert kept
    finally:
        tuning.stop()


def test_how_much_memory_the_process_has() -> None:
    before = resident_bytes()
    more = b"x" * (32 * 2**20)
    assert 16 * 2**20 < resident_bytes() - before < 64 * 2**20
    assert more


async def test_in_the_end_all_is_as_python_has_it() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    tuning = GcTuning(asyncio.get_running_loop())
    tuning.start()
    tuning.stop()
    tuning.stop()
    assert (gc.get_threshold(), list(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0
