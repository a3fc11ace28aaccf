"""Real torchruns whose workers stamp their steps, for the breakdown and for what warm workers cost.

A kill takes a torchrun and its workers together, as the end of a container does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.backends import Seat
from benchmarks.zygote import QUIET

START_TIMEOUT_SECONDS = 120.0
KILL_TIMEOUT_SECONDS = 180.0
_TORCHRUN = Path(sys.executable).parent / "torchrun"
SCRIPT = Path(__file__).parent / "worker.py"
TRACED = Path(__file__).parent / "traced.py"
_LOG_BYTES = 2000


class Torchruns:
    """The torchruns of one measurement and the stamps of their workers, in ``folder``.

    If ``traced``, the torchruns stamp their own steps too (see ``benchmarks.traced``). ``script`` is what
    they run.
    """

    def __init__(self, folder: Path, *, traced: bool = False, script: Path | None = None) -> None:
        self.folder = folder
        self._script = script or SCRIPT
        self._torchrun = [sys.executable, str(TRACED)] if traced else [str(_TORCHRUN)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, agent: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one; `agent` is its name in the stamps."""
        command = [*self._torchrun, *arguments, str(self._script)]
        stamps = {"BENCH_STAMPS": str(self.folder), "BENCH_AGENT": agent}
        with (self.folder / f"{agent}.log").open("wb") as log:
            self._processes[agent] = subprocess.Popen(
                command,
                env={**os.environ, **QUIET, **stamps, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, agent: str) -> float:
        """SIGKILL to a torchrun, then at once to its workers; returns the moment (monotonic)."""
        process = self._processes.pop(agent)
        workers: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            workers = psutil.Process(process.pid).children(recursive=True)
        killed = time.monotonic()
        process.kill()
        for child in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()
        return killed

    def workers(self, agent: str) -> list[psutil.Process]:
        """Its processes that have stamped a step: not those that wait to become workers."""
        pids = {path.suffix[1:] for path in self.folder.glob(f"{agent}.*[0-9]")}
        children = psutil.Process(self._processes[agent].pid).children(recursive=True)
        return [child for child in children if str(child.pid) in pids]

    def kill_worker(self, agent: str) -> float:
        """SIGKILL to one worker; returns the moment (monotonic)."""
        worker = self.workers(agent)[-1]
        killed = time.monotonic()
        worker.kill()
        return killed

    def private_bytes(self, agent: str) -> int:
        """What a torchrun and all that it has started share with no other process."""
        return sum(one.memory_full_info().uss for one in self.tree(agent))

    def tree(self, agent: str) -> list[psutil.Process]:
        """A torchrun and all that it has started."""
        process = psutil.Process(self._processes[agent].pid)
        return [process, *process.children(recursive=True)]

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for agent in list(self._processes):
            self.kill(agent)

    def all_ended(self) -> bool:
        """Whether no torchrun is left."""
        return all(process.poll() is not None for process in self._processes.values())

    def log(self) -> str:
        """The last lines of every torchrun, for a measurement that failed."""
        tails = (path.read_bytes()[-_LOG_BYTES:].decode(errors="replace") for path in self._logs())
        return "\n".join(tails)

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))


@contextlib.contextmanager
def started_torchruns(*, traced: bool = False, script: Path | None = None) -> Iterator[Torchruns]:
    """A folder for torchruns; leaving the context kills them."""
    with tempfile.TemporaryDirectory() as folder:
        torchruns = Torchruns(Path(folder), traced=traced, script=script)
        try:
            yield torchruns
        finally:
            torchruns.kill_all()


def start(torchruns: Torchruns, seat: Seat, index: int, workers: int = 1) -> None:
    """Start the torchrun of this seat with ``workers`` workers; its name is the index."""
    torchruns.start(str(index), arguments_of(seat, workers), seat.environment)


def arguments_of(seat: Seat, workers: int = 1) -> list[str]:
    """The arguments of this seat's torchrun, without the script."""
    arguments = [
        f"--rdzv-backend={seat.backend}",
        f"--rdzv-endpoint={seat.endpoint}",
        f"--rdzv-id={seat.run_id}",
        f"--nnodes={seat.min_nodes}:{seat.max_nodes}",
        f"--nproc-per-node={workers}",
        "--max-restarts=100",
    ]
    if seat.config:
        arguments.append("--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in seat.config.items()))
    if seat.local_addr:
        arguments.append(f"--local-addr={seat.local_addr}")
    return arguments
