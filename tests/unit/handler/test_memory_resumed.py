"""``Checkpoints`` of one rank with its agent's memory: what a script may save after it has saved or resumed a
step."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import pytest
import torch

from elasticjob.checkpoint import Checkpoints, TrainState
from elasticjob.checkpoint.memory_load import Pieces
from elasticjob.checkpoint.memory_piece import PieceError
from elasticjob.memory.keeper import Keeper
from elasticjob.memory.refused import RefusedError
from elasticjob.worker.resumed import Source, read_resumed
from tests.unit.handler.memory_job import Job, await_copies, state, stored
from tests.unit.memory.agents import Pod


def test_a_piece_that_cannot_be_read_leaves_an_optimizer_as_it_was(job: Job) -> None:
    """DCP makes a state to load into, which Adam counts as a step."""

    def fresh() -> tuple[torch.optim.Adam, dict[str, Any]]:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters())
        return optimizer, {"train": TrainState(model, optimizer)}

    optimizer, saved = fresh()
    saved["train"]._model(torch.ones(2)).backward()
    optimizer.step()
    with job.open(1) as checkpoints:
        checkpoints.save(1, saved)
        await_copies(checkpoints)
    job.enter(2)
    optimizer, state = fresh()
    with Checkpoints(job.folder / "run", every=100, memory_every=1) as checkpoints:
        with mock.patch.object(Pieces, "open_all", side_effect=PieceError("it is damaged")):
            assert checkpoints.resume(state) == 0
        assert not optimizer.state


def test_a_step_is_saved_once_in_a_round(job: Job) -> None:
    """Pieces of one name are equal, wherever they are."""
    with job.open(1) as checkpoints:
        for _ in range(2):
            checkpoints.save(1, state(1))
            await_copies(checkpoints)
        assert checkpoints._memory is not None
        assert checkpoints._memory.saved == 1


def test_a_step_below_the_last_one_that_went_to_memory_is_refused(job: Job) -> None:
    """Saved without a word, it would be older than the state that the script has thrown away."""
    job.enter(1)
    with Checkpoints(job.folder / "run", every=10, memory_every=2) as checkpoints:
        for step in (10, 11, 12, 13):
            checkpoints.save(step, state(step))
            await_copies(checkpoints)
        checkpoints.save(12, state(12))
        with pytest.raises(ValueError, match=r"step is 11, expected 12 or more, .* has to count on"):
            checkpoints.save(11, state(11))
        job.pod.keeper.switch_off("a container was out of memory")
        checkpoints.save(14, state(14))
        with pytest.raises(ValueError, match="step is 11, expected 14 or more"):
            checkpoints.save(11, state(11))


def damage(pod: Pod, step: int) -> None:
    (piece,) = [piece for name, piece in pod.keeper._shelf.pieces.items() if name.save.step == step]
    os.pwrite(piece.descriptor, bytes([os.pread(piece.descriptor, 1, 0)[0] ^ 1]), 0)


def test_after_a_second_resume_the_same_steps_are_saved_anew(job: Job) -> None:
    """Else the step that was passed over counts as complete, and is not saved again."""
    with job.open(1) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step))
            await_copies(checkpoints)
        damage(job.pod, 3)
        assert checkpoints.resume(state(0)) == 2
        assert job.pod.held() == ["1.2.0"]
        for step in (3, 4):
            checkpoints.save(step, state(step + 100))
            await_copies(checkpoints)
        assert job.pod.held() == ["1.3.0", "1.4.0"]
        damage(job.pod, 4)
    found = state(0)
    with job.open(2) as later:
        assert later.resume(found) == 3
    assert found["step"] == 103


def test_without_a_new_opening_nothing_more_is_saved_to_memory(job: Job) -> None:
    with job.open(1) as checkpoints:
        checkpoints.save(1, state(1))
        await_copies(checkpoints)
        memory = checkpoints._memory
        assert memory is not None
        with mock.patch.object(Keeper, "open", side_effect=RefusedError("not now")):
            assert checkpoints.resume(state(0)) == 1
        checkpoints.save(2, state(2))
        assert memory.off == "rank 0: not now"


def test_what_was_resumed_from_memory_can_be_saved_to_the_folder(job: Job) -> None:
    with job.open(1) as checkpoints:
        checkpoints.save(7, state(7))
        await_copies(checkpoints)
    with job.open(2) as later:
        found = state(0)
        assert later.resume(found) == 7
        with pytest.raises(ValueError, match="step is 6, expected 7 or more"):
            later.save(6, found, now=True)
        later.save(7, found, now=True)
    assert [path.parent.name[-8:] for path in (job.folder / "run").glob("*/complete.json")] == ["00000007"]


@pytest.mark.parametrize("again", [True, False])
def test_what_this_round_has_in_the_folder_is_not_written_over(job: Job, again: bool) -> None:
    """While it is, its marker stands beside files that are half-written."""
    checkpoints = job.open(1)
    checkpoints.save(100, state(100))
    await_copies(checkpoints)
    checkpoints.wait()
    (marker,) = (job.folder / "run").glob("*/complete.json")
    before = (marker.stat().st_ino, marker.stat().st_mtime_ns)
    if again:
        checkpoints.close()
        checkpoints = Checkpoints(job.folder / "run", every=100, memory_every=1)
    found = state(0)
    assert checkpoints.resume(found) == 100
    said = read_resumed(str(job.folder))
    assert said is not None
    assert said.source == Source.MEMORY
    checkpoints.save(100, found, now=True)
    checkpoints.close()
    assert (marker.stat().st_ino, marker.stat().st_mtime_ns) == before
    assert stored(job) == [100]
