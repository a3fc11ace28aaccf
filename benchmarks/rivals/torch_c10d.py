"""torchrun with torch's c10d backend, as it ships or with store sharing off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.c10d import C10dSession
from benchmarks.results import STORE_SHARING_OFF
from benchmarks.rivals.environments import environment_of
from benchmarks.rivals.systems import Alone, Launch
from benchmarks.rivals.training import TRAIN, Training
from benchmarks.torchruns import arguments_of

CONFIG = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
"""Instead of 30 s, 5 s and 3: with fewer pods than the maximum each round waits for the last call."""
FLAGS = ", ".join(f"{key}={value}" for key, value in CONFIG.items())


def local_addr(pod: int, host: int) -> str:
    """Addresses that sort the store's host last: so it is not rank 0's agent, and two faults hit two pods."""
    return "127.0.0.200" if pod == host else f"127.0.0.{pod + 10}"


class Session(Alone):
    """The store is in pod 0, and its address stays, as that of a StatefulSet's pod does."""

    def __init__(self, program: Path, pods: int, minimum: int, variant: str) -> None:
        self._program = program
        self._session = C10dSession(pods + 1, minimum, variant)

    def launch(self, pod: int) -> Launch:
        """A torchrun."""
        seat = self._session.seat(pod)
        seat = replace(seat, local_addr=local_addr(pod, self.host), config={**seat.config, **CONFIG})
        arguments = [*arguments_of(seat), "--max-restarts=1000000"]
        return Launch([str(self._program), *arguments, str(TRAIN)], seat.environment)


class TorchC10d:
    """The backend in one variant: empty, or `STORE_SHARING_OFF`."""

    version = "torch 2.15.0"

    def __init__(self, variant: str = "") -> None:
        self._variant = variant
        self.name = "c10d, sharing off" if variant else "c10d"
        shared = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, " if variant == STORE_SHARING_OFF else ""
        self.flags = f"{shared}{FLAGS}, --max-restarts=1000000"

    def prepare(self) -> None:
        """torch alone."""
        self._bin = environment_of("c10d")

    @contextlib.contextmanager
    def session(self, training: Training, pods: int, minimum: int) -> Iterator[Session]:
        """A new run id."""
        del training
        yield Session(self._bin / "torchrun", pods, minimum, self._variant)
