"""A job of one rank with its agent's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from elasticjob.checkpoint import Checkpoints
from elasticjob.contract.names import MEMORY_AGENT_ENV, PROGRESS_DIR_ENV, ROUND_ENV
from tests.unit.memory.agents import Pod, begin


class Job:
    """A job of one rank. ``others``: pods that take copies."""

    def __init__(self, folder: Path, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.pod, self.patch = folder, pod, monkeypatch
        self.others: list[Pod] = []
        monkeypatch.setenv(PROGRESS_DIR_ENV, str(folder))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "A")

    def enter(self, number: int, *, met: bool = True) -> None:
        """The next round begins."""
        if met:
            begin(number, self.pod, *self.others)
        else:
            self.pod.enter(number)
        self.patch.setenv(ROUND_ENV, str(number))
        self.patch.setenv(MEMORY_AGENT_ENV, self.pod.where)

    def open(self, number: int, *, met: bool = True) -> Checkpoints:
        """Its workers begin."""
        self.enter(number, met=met)
        return Checkpoints(self.folder / "run", every=100, memory_every=1)


def state(step: int, tensors: int = 3) -> dict[str, Any]:
    return {"step": step, **{f"tensor{n}": torch.full((50,), float(step)) for n in range(tensors)}}


def await_copies(checkpoints: Checkpoints) -> None:
    assert checkpoints._memory is not None
    checkpoints._memory.await_copies(30)


def stored(job: Job) -> list[int]:
    """The steps that the folder has."""
    return sorted(int(path.parent.name[-8:]) for path in (job.folder / "run").glob("*/complete.json"))
