"""The training of a chaos run: the command of its pods, the undisturbed run, and what both must agree in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "paced_train.py"
PACE_SECONDS = 0.1
"""What a step takes at least while the faults go on."""
CHECKPOINT_EVERY = 10
STEPS_PER_EPOCH = 23
"""Of the digits example with its default batch size; ``Comparison`` would notice another number."""
TOLERANCE = 1e-3
"""Of a loss: summation order differs between world sizes."""


@dataclass(frozen=True)
class Training:
    """One training of ``epochs`` epochs that writes into ``folder``."""

    folder: Path
    epochs: int

    @property
    def steps(self) -> int:
        """The number of its last step."""
        return self.epochs * STEPS_PER_EPOCH

    @property
    def pace_file(self) -> Path:
        """While it is there, steps take ``PACE_SECONDS`` longer."""
        return self.folder / "pace"

    def arguments(self, checkpoint_every: int = CHECKPOINT_EVERY) -> list[str]:
        """The script and its options."""
        return [
            *(str(SCRIPT), str(self.pace_file)),
            *(f"--checkpoint-dir={self.folder}", f"--step-log={self.folder}/steps.jsonl"),
            *(f"--checkpoint-every={checkpoint_every}", f"--epochs={self.epochs}"),
            *("--width=32", "--depth=2", "--learning-rate=0.0002"),
        ]

    def pace(self, on: bool) -> None:
        """Hold the training back, or let it run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if on:
            self.pace_file.write_text(str(PACE_SECONDS))
        else:
            self.pace_file.unlink(missing_ok=True)

    def run_undisturbed(self) -> None:
        """Train with one process, without a cluster. Raises CalledProcessError."""
        self.folder.mkdir(parents=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        with (self.folder / "output.txt").open("wb") as output:
            subprocess.run(
                [*command, *self.arguments(checkpoint_every=self.steps)],
                env={**environment, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
                check=True,
                timeout=900,
            )

    def log(self) -> list[dict[str, Any]]:
        """The lines of the step log, in the order in which they were written."""
        path = self.folder / "steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def done(self) -> int:
        """The highest step so far."""
        return max((line["step"] for line in self.log()), default=0)

    @property
    def finished(self) -> bool:
        """Whether it has written its result."""
        return (self.folder / "result.json").exists()

    def result(self) -> dict[str, Any]:
        """What rank 0 wrote at the end."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found


def effective(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that count: of each round those before the step from which the next round resumed.

    Raises AssertionError if a round does not count on from a step that the rounds before it have reached.
    """
    by_round: dict[int, list[dict[str, Any]]] = {}
    for line in log:
        by_round.setdefault(line["round"], []).append(line)
    counted: list[dict[str, Any]] = []
    for number, lines in sorted(by_round.items()):
        steps = [line["step"] for line in lines]
        assert all(b == a + 1 for a, b in pairwise(steps)), f"round {number} logged the steps {steps}"
        assert steps[0] <= len(counted) + 1, (
            f"round {number} began with step {steps[0]}, after {len(counted)}: steps are lost"
        )
        counted = counted[: steps[0] - 1] + lines
    return counted


def redone_after(log: list[dict[str, Any]], stopped: Iterable[int]) -> list[str]:
    """The rounds of ``stopped``, which ended with all workers at a common step, after which another round did
    not go on with the next step, as sentences."""
    ranges: dict[int, list[int]] = {}
    for line in log:
        ranges.setdefault(line["round"], []).append(line["step"])
    wrong = []
    for number in sorted(set(stopped) & ranges.keys()):
        after = min((n for n in ranges if n > number), default=None)
        if after is not None and ranges[after][0] != ranges[number][-1] + 1:
            wrong.append(
                f"round {number} stopped at step {ranges[number][-1]} for a planned change, "
                f"and round {after} went on with step {ranges[after][0]}"
            )
    return wrong


def compare(disturbed: Training, undisturbed: Training) -> list[str]:
    """What differs, in sentences; nothing is what must come out."""
    try:
        ours, theirs = effective(disturbed.log()), effective(undisturbed.log())
    except AssertionError as error:
        return [str(error)]
    wrong = []
    if [line["step"] for line in ours] != [line["step"] for line in theirs] or len(theirs) != disturbed.steps:
        wrong.append(f"{len(ours)} steps count, {len(theirs)} in the undisturbed run, of {disturbed.steps}")
    for a, b in zip(ours, theirs, strict=False):
        if a["ids"] != b["ids"]:
            wrong.append(
                f"step {a['step']} (round {a['round']}) had the sample ids {a['ids']}, not {b['ids']}"
            )
            break
    for a, b in zip(ours, theirs, strict=False):
        if abs(a["loss"] - b["loss"]) > TOLERANCE:
            wrong.append(f"step {a['step']} (round {a['round']}) had the loss {a['loss']}, not {b['loss']}")
            break
    final = [run.result()["final_loss"] for run in (disturbed, undisturbed)]
    if abs(final[0] - final[1]) > TOLERANCE:
        wrong.append(f"the final loss is {final[0]}, that of the undisturbed run {final[1]}")
    return wrong
