"""The callbacks for Trainers of others, without their libraries; tests/guides/test_trainers.py has these."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("module", "absent", "remedy"),
    [
        ("huggingface", ["transformers"], r"pip install 'transformers\[torch\]'"),
        ("lightning", ["lightning", "pytorch_lightning"], "pip install lightning"),
    ],
)
def test_an_absent_library_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, absent: list[str], remedy: str
) -> None:
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"elasticjob.trainers.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=remedy) as raised:
        importlib.import_module(f"elasticjob.trainers.{module}")
    assert raised.value.name == absent[0]


@pytest.fixture
def huggingface(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, beside a library that has nothing but the names."""
    names = ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments")
    library = ModuleType("transformers")
    for name in names:
        setattr(library, name, type(name, (), {}))
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.delitem(sys.modules, "elasticjob.trainers.huggingface", raising=False)
    module = importlib.import_module("elasticjob.trainers.huggingface")
    monkeypatch.delitem(sys.modules, "elasticjob.trainers.huggingface")
    return module


def begin(module: ModuleType, folder: Path, limit: int | None, step: int = 0) -> None:
    """Training begins on rank 0, resumed at this step."""
    arguments = SimpleNamespace(world_size=1, save_total_limit=limit, output_dir=str(folder))
    state: Any = SimpleNamespace(global_step=step, is_world_process_zero=True)
    module.ElasticCallback().on_train_begin(arguments, state, None)


def checkpoint(folder: Path, step: int, *files: str) -> Path:
    """One with these files."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for file in files:
        (path / file).touch()
    return path


@pytest.mark.parametrize("limit", [1, 2])
def test_limits_by_which_trainer_removes_the_only_complete_checkpoint_are_refused(
    huggingface: ModuleType, tmp_path: Path, limit: int
) -> None:
    """Trainer removes the oldest before the new one is marked: a kill in between leaves none that counts."""
    with pytest.raises(ValueError, match=f"save_total_limit is {limit}, expected 3 or more, or None"):
        begin(huggingface, tmp_path, limit)


@pytest.mark.parametrize("limit", [None, 3])
def test_other_limits_are_taken(huggingface: ModuleType, tmp_path: Path, limit: int | None) -> None:
    begin(huggingface, tmp_path / "new", limit)


def test_training_does_not_start_from_scratch_beside_a_whole_checkpoint_without_the_marker(
    huggingface: ModuleType, tmp_path: Path
) -> None:
    """Killed between the last file and the marker, or saved without the callback: the next save would remove
    it."""
    checkpoint(tmp_path, 100, "trainer_state.json")
    with pytest.raises(FileNotFoundError, match=r"checkpoint-100 has trainer_state\.json"):
        huggingface.last_checkpoint(tmp_path)


def test_training_starts_from_scratch_beside_a_half_written_checkpoint(
    huggingface: ModuleType, tmp_path: Path
) -> None:
    checkpoint(tmp_path, 100, "model.safetensors")
    assert huggingface.last_checkpoint(tmp_path) is None


def test_half_written_checkpoints_are_moved_out_of_the_way_of_the_limit(
    huggingface: ModuleType, tmp_path: Path
) -> None:
    """Trainer counts them, and would remove the complete one for them: those above the step at which training
    goes on, for Trainer removes the lowest first."""
    checkpoint(tmp_path, 100)
    whole = checkpoint(tmp_path, 200, "trainer_state.json", huggingface.MARKER)
    for step in (230, 260):
        checkpoint(tmp_path, step, "model.safetensors")
    begin(huggingface, tmp_path, 3, 200)
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"checkpoint-100", "checkpoint-200", "unfinished-230", "unfinished-260"}
    assert huggingface.last_checkpoint(tmp_path) == str(whole)
    begin(huggingface, tmp_path, 3, 200)
    checkpoint(tmp_path, 300)
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    state: Any = SimpleNamespace(global_step=300, is_world_process_zero=True)
    huggingface.ElasticCallback().on_save(arguments, state, None)
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"checkpoint-100", "checkpoint-200", "checkpoint-300"}, "when there is a newer one"


def test_a_kill_between_the_removal_of_old_checkpoints_and_the_marker_loses_no_complete_one(
    huggingface: ModuleType, tmp_path: Path
) -> None:
    """Trainer writes a checkpoint, removes those beyond the limit, and then calls the callback: each save may
    be the one after which the process is killed before that, also twice in a row."""

    def write(step: int) -> None:
        checkpoint(tmp_path, step, "model.safetensors", "trainer_state.json")
        there = sorted(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        for path in there[: -huggingface.LEAST_LIMIT]:
            shutil.rmtree(path)

    def mark(step: int) -> None:
        arguments = SimpleNamespace(output_dir=str(tmp_path))
        state: Any = SimpleNamespace(global_step=step, is_world_process_zero=True)
        huggingface.ElasticCallback().on_save(arguments, state, None)

    step = 0
    for attempt, marked in enumerate((1, 5, 0, 0, 3, 0, 1)):
        begin(huggingface, tmp_path, huggingface.LEAST_LIMIT, step)
        for _ in range(marked):
            step += 10
            write(step)
            mark(step)
        write(step + 11 + attempt)
        assert huggingface.last_checkpoint(tmp_path) == str(tmp_path / f"checkpoint-{step}")
        assert (tmp_path / f"checkpoint-{step}" / "model.safetensors").exists()


@pytest.mark.parametrize("limit", [None, 3])
def test_nothing_is_moved_where_training_was_not_resumed_from_a_complete_one(
    huggingface: ModuleType, tmp_path: Path, limit: int | None
) -> None:
    checkpoint(tmp_path, 200, "trainer_state.json")
    checkpoint(tmp_path, 300, "trainer_state.json")
    begin(huggingface, tmp_path, limit, 200)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-200", "checkpoint-300"}
