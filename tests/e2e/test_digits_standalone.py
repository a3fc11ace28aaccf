"""The digits example under plain torchrun: the same run at every world size, also through a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

TRAIN = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
CHECKPOINT_EVERY = 10
EPOCHS = 20
STEPS = EPOCHS * 23
DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Run:
    """A checkpoint directory and step log, and the torchruns that use them one after the other."""

    directory: Path

    @contextmanager
    def torchrun(self, processes: int) -> Iterator[subprocess.Popen[bytes]]:
        """Start training; on leaving the block nothing of it is left."""
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={processes}", str(TRAIN), f"--checkpoint-dir={self.directory}"),
            *(f"--step-log={self.directory / 'steps.jsonl'}", f"--checkpoint-every={CHECKPOINT_EVERY}"),
            *(f"--epochs={EPOCHS}", "--width=64", "--depth=2"),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
        with (self.directory / "output.txt").open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield process
        finally:
            kill_tree(process)

    def complete(self, processes: int) -> None:
        with self.torchrun(processes) as process:
            assert process.wait(DEADLINE_SECONDS) == 0, self.output()

    def steps(self) -> list[dict[str, float | str]]:
        log = self.directory / "steps.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def result(self) -> dict[str, float]:
        content: dict[str, float] = json.loads((self.directory / "result.json").read_text())
        return content

    def output(self) -> str:
        return (self.directory / "output.txt").read_text()


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for torchrun and its workers, which have sessions of their own."""
    if process.poll() is None:
        torchrun = psutil.Process(process.pid)
        for victim in [*torchrun.children(recursive=True), torchrun]:
            victim.kill()
        process.wait()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two processes, undisturbed."""
    run = Run(tmp_path_factory.mktemp("reference"))
    run.complete(2)
    return run


def same_training(first: list[dict[str, float | str]], second: list[dict[str, float | str]]) -> None:
    assert [line["ids"] for line in first] == [line["ids"] for line in second]
    assert [line["loss"] for line in first] == pytest.approx([line["loss"] for line in second], abs=1e-3)


@pytest.mark.slow
def test_the_log_has_every_step(reference: Run) -> None:
    steps = reference.steps()
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert {line["world_size"] for line in steps} == {2}
    assert {line["round"] for line in steps} == {0}
    assert [line["epoch"] for line in steps] == [index // 23 for index in range(STEPS)]


@pytest.mark.slow
def test_it_learns(reference: Run) -> None:
    result = reference.result()
    assert result["steps"] == STEPS
    assert result["accuracy"] > 0.95
    assert result["final_loss"] < 0.05
    assert "images that it was not trained on" in reference.output()


@pytest.mark.slow
def test_the_world_size_makes_no_difference(reference: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.complete(1)
    same_training(run.steps(), reference.steps())
    assert run.result()["final_loss"] == pytest.approx(reference.result()["final_loss"], abs=1e-3)


@pytest.mark.slow
def test_a_kill_costs_only_the_steps_since_the_last_checkpoint(reference: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.torchrun(2) as process:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(run.steps()) < 3 * CHECKPOINT_EVERY:
            assert process.poll() is None, run.output()
            assert time.monotonic() < deadline, run.output()
            time.sleep(0.01)
    before = run.steps()
    assert len(before) < STEPS, "the run had ended before the kill"

    run.complete(1)
    after = run.steps()[len(before) :]
    redone = len(before) + 1 - int(after[0]["step"])
    # One more than an interval: the kill may come between a step's log line and its checkpoint.
    assert 0 <= redone <= CHECKPOINT_EVERY
    assert {line["world_size"] for line in after} == {1}
    same_training(before[: len(before) - redone] + after, reference.steps())
    assert run.result()["final_loss"] == pytest.approx(reference.result()["final_loss"], abs=1e-3)
    assert run.result()["resumed_from_step"] == int(after[0]["step"]) - 1
