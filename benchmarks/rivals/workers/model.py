"""The model, the data and the stamps, for all systems alike. Needs torch alone.

The batch of a step is the same at any number of workers: each takes its share, and gradients are summed. So
the loss of the last step tells whether a system has lost samples or updates on the way.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

SEED = 7
SAMPLES, FEATURES, WIDTH, CLASSES = 8192, 64, 512, 10
BATCH = 64
SETTINGS = json.loads(os.environ["RIVALS_SETTINGS"])


class Model:
    """A network of 1.2 MB, its optimizer, and made-up data."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, CLASSES),
        )
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        generator = torch.Generator().manual_seed(SEED)
        self._data = torch.randn(SAMPLES, FEATURES, generator=generator)
        self._labels = self._data[:, :CLASSES].argmax(1)

    def gradients(self, step: int, rank: int, world_size: int) -> torch.Tensor:
        """This rank's share of the gradients and, last, of the loss, as one tensor to be summed."""
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(SAMPLES, (BATCH,), generator=generator)[rank::world_size]
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self._data[ids]), self._labels[ids], reduction="sum") / BATCH
        torch.autograd.backward(loss)
        parts = [parameter.grad.flatten() for parameter in self._parameters() if parameter.grad is not None]
        return torch.cat([*parts, loss.detach().reshape(1)])

    def update(self, summed: torch.Tensor) -> float:
        """Take a step with the summed gradients; returns the loss."""
        begin = 0
        for parameter in self._parameters():
            size = parameter.numel()
            parameter.grad = summed[begin : begin + size].view_as(parameter).clone()
            begin += size
        self.optimizer.step()
        return float(summed[-1])

    def state(self) -> dict[str, Any]:
        """What a checkpoint has."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        return iter(self.network.parameters())


class Stamps:
    """A line for each step that was trained, in a file of this process."""

    def __init__(self) -> None:
        name = f"{os.environ['RIVALS_POD']}.{os.getpid()}.steps"
        self._file = (Path(os.environ["RIVALS_FOLDER"]) / name).open("w", buffering=1)

    def trained(self, rank: int, step: int, loss: float) -> None:
        """Once all ranks have taken part in it."""
        stamp = {"rank": rank, "step": step, "at": time.monotonic(), "loss": loss}
        self._file.write(json.dumps(stamp) + "\n")


class Checkpoint:
    """One file in storage that all share, replaced at once."""

    def __init__(self) -> None:
        self._path = Path(SETTINGS["folder"]) / "checkpoint.pt"

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write it, if this is one of the steps after which it is written."""
        if step % SETTINGS["every"] == 0:
            partial = self._path.with_suffix(f".{os.getpid()}")
            torch.save({"step": step, "state": state}, partial)
            partial.replace(self._path)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """The last one, if there is one."""
        if not self._path.exists():
            return None
        content = torch.load(self._path)
        return content["step"], content["state"]
