"""``Checkpoints`` of one rank with its agent's memory: what is saved, skipped and kept."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import numpy
import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful

from elasticjob.checkpoint import CheckpointError, Checkpoints, StaleRoundError, memory
from elasticjob.checkpoint.directory import Directory
from elasticjob.checkpoint.memory import MemoryTier
from elasticjob.checkpoint.records import Marker, Name
from elasticjob.worker.resumed import Source, read_resumed
from tests.guides.pages import program
from tests.unit.handler.memory_job import Job, await_copies, state, stored
from tests.unit.memory.agents import Pod, text


def test_a_state_that_has_grown_while_a_save_was_skipped_is_saved_as_a_whole(job: Job) -> None:
    """The plan of the skipped save was never divided: the next one must not be taken for one like before."""
    checkpoints = job.open(1, met=False)
    checkpoints.save(1, state(1))
    checkpoints.save(2, state(2, tensors=5))
    job.pod.meet("token")
    await_copies(checkpoints)
    checkpoints.save(3, state(3, tensors=5))
    assert checkpoints._memory is not None
    assert (checkpoints._memory.saved, checkpoints._memory.skipped) == (2, 1)
    checkpoints.close()

    found = state(0, tensors=5)
    with job.open(2) as later:
        assert later.resume(found) == 3
    assert all(found[f"tensor{n}"].eq(3).all() for n in range(5))


def test_the_log_says_how_many_saves_were_skipped_each_time_that_they_have_doubled(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is copied before the agents have met."""
    caplog.set_level(logging.INFO)
    checkpoints = job.open(1, met=False)
    for step in range(1, 10):
        checkpoints.save(step, state(step))
    told = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert told == [f"memory checkpoints: 1 saved, {n} skipped while copies were sent" for n in (1, 2, 4, 8)]
    checkpoints.close()


def test_a_state_that_shrinks_and_grows_is_loaded_as_it_was_saved_last(job: Job) -> None:
    with job.open(1) as checkpoints:
        for step, tensors in enumerate((3, 5, 2, 2, 4), start=1):
            checkpoints.save(step, state(step, tensors))
            await_copies(checkpoints)
    found = state(0, tensors=4)
    with job.open(2) as later:
        assert later.resume(found) == 5
    assert [float(found[f"tensor{n}"][0]) for n in range(4)] == [5.0] * 4
    said = read_resumed(str(job.folder))
    assert said is not None
    assert (said.step, said.source, said.pieces_from_peers) == (5, Source.MEMORY, 0)


def test_tensors_of_all_kinds_come_back(job: Job) -> None:
    kinds: dict[str, Any] = {
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False, True]),
        "half": torch.ones(7, dtype=torch.bfloat16),
        "whole": torch.arange(5, dtype=torch.int8),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "text": "déjà vu",
        "nested": {"list": [1, 2.5, None]},
    }
    with job.open(1) as checkpoints:
        checkpoints.save(1, kinds)
        await_copies(checkpoints)
    found: dict[str, Any] = dict.fromkeys(kinds)
    found |= {key: torch.zeros_like(v) for key, v in kinds.items() if isinstance(v, torch.Tensor)}
    found["nested"] = {"list": [0, 0.0, 0]}
    with job.open(2) as later:
        assert later.resume(found) == 1
    for key, value in kinds.items():
        assert torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value


@pytest.mark.parametrize("step", [numpy.int64(3), torch.tensor(3)])
def test_a_step_may_be_numpys_or_a_tensor(job: Job, step: Any) -> None:
    with job.open(1) as checkpoints:
        checkpoints.save(step, state(3))
        await_copies(checkpoints)
    assert job.pod.held() == ["1.3.0"]
    with job.open(2) as checkpoints:
        assert checkpoints.resume(state(0)) == 3
        with pytest.raises(
            TypeError, match=r"Checkpoints.save: step is 4\.5 \(float\), expected a whole number"
        ):
            checkpoints.save(4.5, state(4))  # type: ignore[arg-type]


def test_a_save_in_inference_mode_is_one_like_all_others(job: Job) -> None:
    checkpoints = job.open(1)
    with torch.inference_mode():
        checkpoints.save(1, state(1))
    for step in (2, 3, 4):
        await_copies(checkpoints)
        checkpoints.save(step, state(step))
    assert checkpoints._memory is not None
    assert (checkpoints._memory.off, checkpoints._memory.saved) == ("", 4)
    checkpoints.close()


def test_a_piece_that_grows_lets_go_of_its_buffers_before_it_asks_for_larger_ones(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container with room for no more: what is still mapped would count twice."""
    checkpoints = job.open(1)
    memory = checkpoints._memory
    assert memory is not None
    for step in (1, 2, 3):
        checkpoints.save(step, state(step))
        await_copies(checkpoints)
    asked, lend = list[int](), memory._agent.lend

    def noted(rank: int, size: int, *rest: Any) -> int:
        asked.append(sum(1 for one in memory._buffers._buffers.values() if one.numel() < size))
        return lend(rank, size, *rest)

    monkeypatch.setattr(memory._agent, "lend", noted)
    checkpoints.save(4, {**state(4), "log": "x" * 300_000})
    assert asked == [0]
    assert not memory.off
    checkpoints.close()


class Gathering(Stateful):
    """An entry that makes its state anew, as an average of the weights does."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[torch.Tensor]] = []

    def state_dict(self) -> dict[str, Any]:
        weights = torch.zeros(1000)
        self.made.append(weakref.ref(weights))
        return {"weights": weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("every", [100, 1])
def test_what_an_entry_has_made_for_a_save_does_not_outlive_it(job: Job, every: int) -> None:
    job.enter(1)
    entry = Gathering()
    with Checkpoints(job.folder / "run", every=every, memory_every=1) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"average": entry})
            await_copies(checkpoints)
            checkpoints.wait()
            gc.collect()
            assert [one() for one in entry.made] == [None] * len(entry.made)


def test_the_loop_of_the_page_stores_the_last_step_if_its_save_has_failed_in_the_round_before(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = program("memory-checkpoints.md", ('"/checkpoints"', "folder"))
    trained: list[int] = []
    names: dict[str, Any] = {
        "Checkpoints": Checkpoints,
        "folder": job.folder / "run",
        "STEPS": 3,
        "state": state(0),
        "should_stop": lambda _: False,
    }

    def train(step: int) -> None:
        await_copies(names["checkpoints"])
        trained.append(step)
        names["state"]["step"] = step

    def fails(directory: Directory, name: Name, marker: Marker) -> None:
        await_copies(names["checkpoints"])
        raise OSError(f"no answer, and {directory.folder(name)} stays without {marker}")

    names["train"] = train
    job.enter(1)
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "complete", fails)
        with pytest.raises(CheckpointError, match="no answer"):
            exec(loop, names)
    assert stored(job) == []

    job.enter(2)
    names["state"] = state(0)
    exec(loop, names)
    assert trained == [1, 2, 3]
    assert names["state"]["step"] == 3
    assert stored(job) == [3]


def test_a_warning_says_that_the_last_step_is_not_in_the_folder(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned() -> list[str]:
        told = [r.getMessage() for r in caplog.records if " is not in " in r.getMessage()]
        caplog.clear()
        return [text.partition(":")[0].replace(str(job.folder / "run"), "FOLDER") for text in told]

    with job.open(1) as checkpoints:
        checkpoints.save(1, state(1))
        await_copies(checkpoints)
    assert warned() == ["step 1 is not in FOLDER, which has no checkpoint"]
    with job.open(2) as checkpoints:
        assert checkpoints.resume(state(0)) == 1
        checkpoints.save(1, state(1), now=True)
        await_copies(checkpoints)
        checkpoints.save(2, state(2))
        await_copies(checkpoints)
    with job.open(3) as checkpoints:
        assert checkpoints.resume(state(0)) == 2
    assert warned() == ["step 2 is not in FOLDER, whose newest checkpoint is of step 1"] * 2
    with monkeypatch.context() as patched, job.open(4) as checkpoints:
        assert checkpoints.resume(state(0)) == 2
        patched.setattr("elasticjob.worker.stopping.is_stopping", lambda: True)
    with job.open(5) as checkpoints:
        assert checkpoints.resume(state(0)) == 2
        checkpoints.save(2, state(2), now=True)
    assert warned() == []


def test_a_former_round_s_pieces_stay_until_this_one_has_a_complete_save(job: Job, pod: Pod) -> None:
    def held() -> list[str]:
        return sorted(text(name) for name in pod.keeper._shelf.names())

    with job.open(1) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step))
            await_copies(checkpoints)
    assert held() == ["1.2.0", "1.3.0"]
    with job.open(2) as later:
        later.resume(state(0))
        assert held() == ["1.3.0"]
        later.save(4, state(4))
        await_copies(later)
        assert held() == ["1.3.0", "2.4.0"]
        later.save(5, state(5))
        assert held() == ["2.4.0", "2.5.0"]


def test_a_rank_left_behind_by_an_earlier_round_saves_neither_to_memory_nor_to_the_folder(
    job: Job, pod: Pod
) -> None:
    """The folder decides for itself which round may save there, with memory or without."""
    left_behind = job.open(1)
    left_behind.save(1, state(1))
    await_copies(left_behind)
    memory._open.clear()  # it is in another process than the next round's ranks
    with job.open(2) as later:
        assert later.resume(state(0)) == 1
        left_behind.save(100, state(100))
        with pytest.raises(StaleRoundError, match="round 2"):
            left_behind.wait()
        assert left_behind._memory is not None
        assert "this worker's round is over" in left_behind._memory.off
        assert (pod.held(), stored(job)) == (["1.1.0"], [])
        later.save(2, state(2), now=True)
        await_copies(later)
    left_behind.save(200, state(200))
    with pytest.raises(StaleRoundError, match="round 2"):
        left_behind.close()
    assert (pod.held(), stored(job)) == (["1.1.0", "2.2.0"], [2])


def test_a_second_folder_of_a_script_has_no_memory(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="elasticjob.checkpoint")
    with job.open(1), Checkpoints(job.folder / "other", every=2, memory_every=1) as other:
        assert other._memory is None
    assert "another Checkpoints of this script has it" in caplog.text


def test_a_script_of_two_folders_resumes_the_second_one_from_memory(job: Job, pod: Pod) -> None:
    """It opens the first one on its way. There is room for the pieces of one folder."""
    pod.keeper.limit = 2 << 16
    ends = {"first": 4, "second": 3}

    def phase(folder: str, until: int) -> int:
        with Checkpoints(job.folder / folder, every=4, memory_every=1) as checkpoints:
            done = step = checkpoints.resume(state(0))
            for step in range(done + 1, until + 1):
                checkpoints.save(step, state(step))
                await_copies(checkpoints)
            if folder == "first":
                checkpoints.save(step, state(step), now=True)
            assert checkpoints._memory is not None
            assert checkpoints._memory.off == ""
        return done

    job.enter(1)
    assert [phase(*one) for one in ends.items()] == [0, 0]
    assert pod.held() == ["1.2.0", "1.3.0"]
    job.enter(2)
    assert [phase(*one) for one in ends.items()] == [4, 3]
    assert pod.held() == ["1.3.0"]
    job.enter(3)
    assert phase("first", 6) == 4
    assert pod.held() == ["3.5.0", "3.6.0"], "it makes room, else this folder would have no memory"


def test_an_agent_that_goes_away_leaves_the_folder(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with job.open(1) as checkpoints:
        checkpoints.save(1, state(1))
        job.pod.service.close()
        for step in (2, 3):
            checkpoints.save(step, state(step))
        checkpoints.save(4, state(4), now=True)
    assert "no more memory checkpoints in this round: rank 0: torchrun does not answer" in caplog.text
    assert list((job.folder / "run").glob("*-s00000004/complete.json"))


def test_a_drain_that_needs_the_folder_does_not_wait_for_copies(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took up to 20 s of its 30."""
    awaited: list[float] = []
    checkpoints = job.open(1, met=False)
    checkpoints.save(1, state(1))
    monkeypatch.setattr(MemoryTier, "await_copies", lambda _, seconds: awaited.append(seconds))
    monkeypatch.setattr("elasticjob.worker.stopping.is_stopping", lambda: True)
    checkpoints.save(2, state(2))
    assert awaited == []
    checkpoints.close()
    assert list((job.folder / "run").glob("*-s00000002/complete.json"))


def test_once_memory_is_off_no_state_is_gathered_for_it(job: Job) -> None:
    asked: list[int] = []

    class Part:
        def state_dict(self) -> dict[str, Any]:
            asked.append(1)
            return {"x": 1}

        def load_state_dict(self, found: dict[str, Any]) -> None:
            """Not called."""

    with job.open(1) as checkpoints:
        job.pod.keeper.switch_off("a container was out of memory")
        for step in (1, 2):
            checkpoints.save(step, state(step) | {"part": Part()})
        before = len(asked)
        checkpoints.save(3, state(3) | {"part": Part()})
        assert len(asked) == before


def test_once_memory_is_off_and_the_folder_has_all_of_it_the_pods_let_go_of_it(job: Job, pod: Pod) -> None:
    """After an OOM kill in one pod the others kept two parts for the rest of the round."""
    with job.open(1) as checkpoints:
        for step in (99, 100, 101):
            checkpoints.save(step, state(step))
            await_copies(checkpoints)
        assert checkpoints._memory is not None
        checkpoints._memory._switch_off("a container of this job was out of memory")
        checkpoints.wait()
        assert pod.held() == ["1.100.0", "1.101.0"], "step 101 is nowhere else"
        checkpoints.save(102, state(102), now=True)
        checkpoints.wait()
        assert pod.held() == []
    with job.open(2) as later:
        assert later.resume(state(0)) == 102


@pytest.mark.parametrize(("stays", "copied"), [(True, True), (True, False), (False, True)])
def test_a_planned_change_saves_to_the_folder_unless_all_pods_stay_and_have_copies(
    job: Job, pod: Pod, other: Pod, monkeypatch: pytest.MonkeyPatch, stays: bool, copied: bool
) -> None:
    job.others = [other] if copied else []
    with job.open(1) as checkpoints:
        checkpoints.save(1, state(1))
        if stays:
            pod.keeper.all_stay(1)
        monkeypatch.setattr("elasticjob.worker.stopping.is_stopping", lambda: True)
        checkpoints.save(2, state(2))
    in_folder = list((job.folder / "run").glob("*-s00000002/complete.json"))
    assert bool(in_folder) is not (stays and copied)
    assert not stays or "1.2.0" in pod.held()
