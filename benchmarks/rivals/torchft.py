"""torchft: each pod is a replica group of one worker, under a torchrun of its own; a lighthouse is apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.c10d import free_port
from benchmarks.rivals.coordinator import Coordinator
from benchmarks.rivals.environments import environment_of
from benchmarks.rivals.systems import Alone, Launch
from benchmarks.rivals.training import TRAIN_TORCHFT, Training

LIGHTHOUSE = ("--join_timeout_ms=2000", "--heartbeat_timeout_ms=2000")
"""Instead of 60 s and 5 s: how long those that are left wait for one that was lost."""


class Session(Alone):
    """The lighthouse is on the node of the last pod, which is not rank 0's: ranks are in the order of ids."""

    def __init__(self, folder: Path, lighthouse: Coordinator, address: str, pods: int, minimum: int) -> None:
        self.host = pods - 1
        self._folder = folder
        self._lighthouse = lighthouse
        self._environment = {"TORCHFT_LIGHTHOUSE": f"http://{address}", "RIVALS_MINIMUM": str(minimum)}

    def launch(self, pod: int) -> Launch:
        """A torchrun of its own restarts the worker."""
        del pod
        arguments = ["--standalone", "--nproc-per-node=1", "--max-restarts=1000000", str(TRAIN_TORCHFT)]
        return Launch([str(self._folder / "torchrun"), *arguments], self._environment)

    def kill_coordinator(self) -> None:
        """The lighthouse."""
        self._lighthouse.kill()

    def start_coordinator(self) -> None:
        """With the same address, as behind a service."""
        self._lighthouse.start()


class Torchft:
    """Synchronous quorum: a replica that comes takes part from its first step on."""

    name = "torchft"
    version = "torchft 0.2.0, torch 2.15.0"
    flags = (
        f"{' '.join(LIGHTHOUSE)}, gloo, use_async_quorum=False, "
        "timeout=10 s, quorum_timeout=20 s, quorum_retries=20"
    )

    def prepare(self) -> None:
        """torchft and torch."""
        self._bin = environment_of("torchft")

    @contextlib.contextmanager
    def session(self, training: Training, pods: int, minimum: int) -> Iterator[Session]:
        """With a lighthouse of its own."""
        address = f"127.0.0.1:{free_port()}"
        words = [f"--bind={address}", f"--min_replicas={minimum}", *LIGHTHOUSE]
        program = str(self._bin / "torchft_lighthouse")
        with Coordinator([program, *words], Path(training.folder) / "lighthouse.log") as lighthouse:
            yield Session(self._bin, lighthouse, address, pods, minimum)
