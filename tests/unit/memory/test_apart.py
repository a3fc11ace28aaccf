"""Pods that send each other nothing: each holds all that its own ranks need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticjob.checkpoint.memory import MemoryTier
from elasticjob.checkpoint.records import Token
from elasticjob.checkpoint.trust import Planner
from tests.unit.memory.agents import Pod, begin

MakePod = Callable[..., Pod]


class Meeting:
    """Where ranks that are threads exchange what they say."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=60)
        self.said: list[Any] = [None] * count


class Ranks:
    """One of them."""

    group = None
    timeout = 60.0

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.barrier.parties

    def everywhere(self, found: Any) -> list[Any]:
        self._meeting.said[self.rank] = found
        self._meeting.barrier.wait()
        everything = list(self._meeting.said)
        self._meeting.barrier.wait()
        return everything

    def agreed(self, decide: Callable[[], Any]) -> Any:
        return self.everywhere(decide() if self.rank == 0 else None)[0]

    def all_say(self, *answers: bool) -> list[bool]:
        return [all(one) for one in zip(*self.everywhere(answers), strict=True)]

    def divided(self, given: Any, divide: Callable[[list[Any]], Any]) -> Any:
        everything = self.everywhere(given)
        return self.everywhere(divide(everything) if self.rank == 0 else None)[0][self.rank]

    def together(self, collective: Callable[[], Any]) -> Any:
        return collective()


def state(rank: int, number: int) -> dict[str, Any]:
    """As FSDP has it: a part of its own, and what all ranks have."""
    common = {f"common{n}": torch.full((100,), number) for n in range(6)}
    return {f"part{rank}": torch.full((1000,), number), "epoch": number, **common}


def run(pods: list[Pod], path: Path, train: Callable[[MemoryTier, int], Any]) -> list[Any]:
    """Do this on all ranks, each a worker of one of these pods; what has come of it, by rank."""
    meeting = Meeting(len(pods))

    def one(rank: int) -> Any:
        ranks: Any = Ranks(meeting, rank)
        tier = MemoryTier(pods[rank].worker(), ranks, Token(1, 1), str(path), 1)
        try:
            return train(tier, rank)
        finally:
            tier.close()

    with ThreadPoolExecutor(len(pods)) as pool:
        return list(pool.map(one, range(len(pods))))


def saves(tier: MemoryTier, rank: int) -> None:
    for step in (1, 2, 3):
        assert tier.save(step, state(rank, step))
        tier.await_copies(60)


def saves_again(tier: MemoryTier, rank: int) -> Any:
    """After a second resume, which passes over the newest save."""
    saves(tier, rank)
    newest, second = tier.candidates()
    tier.resumed(second.save)
    assert tier.save(newest.save.step, state(rank, 103))
    tier.await_copies(60)
    again = newest.save._replace(opening=tier._opening)
    return [one.save for one in tier.candidates()] == [again, second.save]


def loads(tier: MemoryTier, rank: int) -> Any:
    """The state that is loaded and how many pieces came from other pods, or why none is."""
    target = state(rank, 0)
    found = tier.load(target, tier.candidates()[0], Planner(False))
    numbers = {int(value.max()) if isinstance(value, torch.Tensor) else value for value in target.values()}
    return found if isinstance(found, str) else (numbers, found)


def sizes(pods: list[Pod]) -> Iterator[int]:
    """Of the newest step's pieces, by pod."""
    for pod in pods:
        held = pod.keeper._shelf.pieces.values()
        yield sum(piece.size for piece in held if piece.name.save.step == 3)


@pytest.mark.parametrize("network", [False, True])
def test_each_rank_resumes_from_its_own_pod(pods: MakePod, tmp_path: Path, network: bool) -> None:
    """Two pods, of two workers each."""
    first, second = pods(network=network), pods(network=network)
    members = [first, first, second, second]
    begin(1, first, second)
    run(members, tmp_path, saves)
    assert all(len(pod.held()) == (8 if network else 4) for pod in (first, second))
    begin(2, first, second)
    assert run(members, tmp_path, loads) == [({3}, 0)] * 4


def test_a_second_resume_begins_an_opening_that_all_ranks_hear_of(pods: MakePod, tmp_path: Path) -> None:
    first, second = pods(), pods()
    members = [first, first, second, second]
    begin(1, first, second)
    assert run(members, tmp_path, saves_again) == [True] * 4
    begin(2, first, second)
    assert run(members, tmp_path, loads) == [({103}, 0)] * 4


def test_workers_of_one_pod_share_what_they_have_in_common(pods: MakePod, tmp_path: Path) -> None:
    pod, apart = pods(network=False), [pods(network=False) for _ in range(2)]
    begin(1, pod)
    begin(1, *apart)
    run([pod, pod], tmp_path, saves)
    run(apart, tmp_path, saves)
    (together,), alone = sizes([pod]), list(sizes(apart))
    assert together < sum(alone) - 6 * 800, "both pods have the six tensors"
