"""Saves of one rank to real agents: what is enough to stop training, and whose state is loaded."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from elasticjob.checkpoint.memory import MemoryTier
from elasticjob.checkpoint.memory_load import Pieces
from elasticjob.checkpoint.memory_piece import PieceError
from elasticjob.checkpoint.ranks import Ranks
from elasticjob.checkpoint.records import Token
from elasticjob.checkpoint.trust import Planner
from elasticjob.memory import decide
from elasticjob.memory.decide import Candidate
from elasticjob.memory.pieces import Save
from tests.unit.memory.agents import Pod, begin, mapped
from tests.unit.memory.peers import member

MakePod = Callable[..., Pod]


@pytest.mark.parametrize("copies", [1, 0])
def test_it_is_enough_if_all_pods_stay_and_another_one_has_a_copy(
    pods: MakePod, tmp_path: Path, copies: int
) -> None:
    """A new pod gets nothing from one that has no network, and a pod may be lost while it starts."""
    pod, other = pods(network=copies > 0), pods()
    begin(1, *[pod, other][: 1 + copies])
    tier = MemoryTier(pod.worker(), Ranks(60), Token(1, 1), str(tmp_path), 1)
    assert not tier.is_enough(0, 60), "nothing is saved yet"
    assert tier.save(7, {"weights": torch.arange(5)})
    assert not tier.all_stay()
    pod.keeper.all_stay(1)
    assert tier.all_stay()
    assert tier.is_enough(7, 60) == (copies > 0)
    assert not tier.is_enough(8, 60), "another step"
    pod.keeper.switch_off("out of memory")
    assert not tier.all_stay()
    tier.close()


def test_the_metadata_is_pickled_once_for_saves_that_are_alike(
    pods: MakePod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks wait for rank 0, which takes up to a second for it in a large job."""
    pickled, dumps = [], pickle.dumps

    def counted(value: object, *args: Any, **kwargs: Any) -> bytes:
        if isinstance(value, Metadata):
            pickled.append(value)
        return dumps(value, *args, **kwargs)

    monkeypatch.setattr(pickle, "dumps", counted)
    pod = pods()
    begin(1, pod)
    tier = opened(pod, tmp_path)
    save_all(tier, 1, 2, 3, 4)
    assert len(pickled) == 1
    assert tier.save(5, state(5) | {"more": torch.ones(2)})
    assert len(pickled) == 2
    tier.await_copies(60)
    assert loaded(tier, tier.candidates()[0]) == 5
    tier.close()


# -- whose state it is -------------------------------------------------------------------------------------


def opened(pod: Pod, path: Path) -> MemoryTier:
    """As a script opens its checkpoints."""
    worker = pod.worker()
    return MemoryTier(worker, Ranks(60), Token(1, 1), str(path), worker.opening)


def state(number: int) -> dict[str, Any]:
    return {"weights": torch.full((100,), number)}


def loaded(tier: MemoryTier, candidate: Candidate) -> int | str:
    """The number of the state that was loaded, or why none was."""
    target = state(0)
    found = tier.load(target, candidate, Planner(False))
    return found if isinstance(found, str) else int(target["weights"].unique())


def save_all(tier: MemoryTier, *steps: int, plus: int = 0) -> None:
    for step in steps:
        assert tier.save(step, state(step + plus))
        tier.await_copies(60)


def test_a_script_that_opens_its_checkpoints_twice_in_a_round_mixes_no_states(
    pods: MakePod, tmp_path: Path
) -> None:
    """The same steps of another state: they have other names, the later opening is newer, and what the first
    one has saved makes room."""
    pod = pods()
    begin(1, pod)
    first = opened(pod, tmp_path)
    save_all(first, 1, 2, 3)
    first.close()
    second = opened(pod, tmp_path)
    assert [loaded(second, one) for one in second.candidates()] == [3, 2]
    second.resumed(None)
    save_all(second, 1, 2, plus=100)
    found = second.candidates()
    assert [(one.save.step, loaded(second, one)) for one in found] == [(2, 102), (1, 101)]
    second.close()


def test_a_piece_in_the_place_of_another_one_is_refused_though_its_checksum_is_right(
    pods: MakePod, tmp_path: Path
) -> None:
    pod = pods()
    begin(1, pod)
    tier = opened(pod, tmp_path)
    save_all(tier, 1, 2)
    older, newer = sorted(pod.keeper._shelf.pieces.values(), key=lambda piece: piece.name)
    assert older.size == newer.size
    os.pwrite(newer.descriptor, os.pread(older.descriptor, older.size, 0), 0)
    newer.crc32 = older.crc32
    (second, first) = tier.candidates()
    assert "is in the place of rank 0's piece of step 2" in str(loaded(tier, second))
    assert loaded(tier, first) == 1
    tier.close()


def held_elsewhere(
    pods: MakePod, path: Path, *steps: int
) -> tuple[MemoryTier, list[Candidate], Pod, Pod, Pod]:
    """One that holds nothing, these saves of another pod, which are also in a third one, and the pods."""
    here, there, third = pods(), pods(), pods()
    begin(1, there, third)
    first = opened(there, path)
    save_all(first, *steps)
    first.close()
    begin(2, here, there, third)
    tier = opened(here, path)
    assert tier.candidates() == []
    found = decide.candidates([pod.worker().inventory() for pod in (there, third)], tier._folder)
    alone = [
        tuple(tuple(replace(one, ranks=(0,)) for one in piece) for piece in save.pieces) for save in found
    ]
    return (
        tier,
        [replace(save, pieces=pieces) for save, pieces in zip(found, alone, strict=True)],
        here,
        there,
        third,
    )


def at(candidate: Candidate, *addresses: str) -> Candidate:
    """The same with the holders of its one piece at these addresses."""
    (piece,) = candidate.pieces
    moved = [
        replace(one, inventory=replace(one.inventory, address=address))
        for one, address in zip(piece, addresses, strict=True)
    ]
    return replace(candidate, pieces=(tuple(moved),))


def test_a_holder_that_says_nothing_is_waited_for_half_as_long_as_ranks_wait(
    pods: MakePod, tmp_path: Path
) -> None:
    """The others are in a collective meanwhile: the round would end."""
    over = threading.Event()
    tier, (candidate,), *_ = held_elsewhere(pods, tmp_path, 1)
    tier._ranks.timeout = 0.4
    with member(lambda _: over.wait(60)) as silent:
        problem = str(loaded(tier, at(candidate, silent, silent)))
        over.set()
    assert problem.count("it was not there in time") == 2
    tier._ranks.timeout = 60
    assert loaded(tier, candidate) == 1
    tier.close()


def test_what_was_got_of_a_save_that_is_passed_over_makes_room_for_the_next(
    pods: MakePod, tmp_path: Path
) -> None:
    """There is memory for one of them. Each piece of the newer one is another one, so it cannot be loaded."""
    tier, (newer, older), here, *there = held_elsewhere(pods, tmp_path, 1, 2)
    for holder, pod in zip(newer.pieces[0], there, strict=True):
        replaced, other = (pod.keeper._shelf.pieces[one.pieces[0][0].held.name] for one in (newer, older))
        os.pwrite(replaced.descriptor, os.pread(other.descriptor, other.size, 0), 0)
        object.__setattr__(holder.held, "crc32", other.crc32)
    fetched = here.keeper._fetched
    fetched._gate = lambda _: "there is no memory for two" if fetched._pieces else ""
    assert "is in the place of" in str(loaded(tier, newer))
    assert len(fetched._pieces) == 1
    assert loaded(tier, older) == 1
    tier.close()


def test_a_save_that_cannot_be_loaded_stays_mapped_in_no_error(
    pods: MakePod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory would not be free until the next run of the garbage collector."""
    pod = pods()
    begin(1, pod)
    tier = opened(pod, tmp_path)
    save_all(tier, 1)
    tier._buffers.clear()
    before, seen, open_all = mapped(), list[set[str]](), Pieces.open_all

    def fails(self: Pieces, ranks: Any) -> None:
        open_all(self, ranks)
        seen.append(mapped() - before)
        raise PieceError("it is damaged")

    monkeypatch.setattr(Pieces, "open_all", fails)
    (candidate,) = tier.candidates()
    gc.disable()
    try:
        assert loaded(tier, candidate) == "rank 0 cannot read it: it is damaged"
        assert (len(seen[0]), mapped() - before) == (1, set())
    finally:
        gc.enable()
    tier.close()


@pytest.mark.parametrize("rank", range(5))
def test_each_rank_begins_with_another_piece(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With DDP all need all pieces, and would ask one holder after the other at the same time."""
    opened: list[int] = []
    monkeypatch.setattr(Pieces, "open", lambda _, number: opened.append(number))
    candidate = Candidate(Save(1, 1, 1, 7, 4), ((),) * 4)
    Pieces(cast(Any, None), "", candidate, rank, 60).open_all({3, 2, 1, 0})
    assert opened == [(rank + after) % 4 for after in range(4)]
