"""Jobs whose workers are `memory_worker.py`: real torchruns in pods that the benchmark plays, with a real
operator and API server; and what their workers have stamped."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from benchmarks.breakdown_runs import JobDied, await_call, has_warm, seat_of
from benchmarks.k8s import K8s, K8sSession
from benchmarks.memory_worker import Settings
from benchmarks.torchruns import Torchruns, start, started_torchruns
from elasticjob.contract import names

SCRIPT = Path(__file__).parent / "memory_worker.py"
PER_POD = 16 * 2**30
"""No limit for what is measured here: the table says what a pod really holds."""
MEMFD = "/memfd:elasticjob-memory"
POLL_SECONDS = 0.02
START_SECONDS = 300.0


@dataclass
class Worker:
    """What one process has stamped: from which step it has resumed, when each step had been trained, for how
    long each save has stopped it, and how many were skipped up to each save."""

    resumed: int = -1
    trained: dict[int, float] = field(default_factory=dict)
    stopped: dict[int, float] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Worker:
        """Read whole lines."""
        worker = Worker()
        whole, _, _ = path.read_text().rpartition("\n")
        for line in whole.splitlines():
            name, number, seconds = line.split()
            if name == "resumed":
                worker.resumed = int(number)
            elif name == "trained":
                worker.trained[int(number)] = float(seconds)
            elif name == "saved":
                worker.stopped[int(number)] = float(seconds)
            else:
                worker.skipped.append(int(number))
        return worker


class Job:
    """One job that trains."""

    def __init__(self, torchruns: Torchruns, session: K8sSession, settings: Settings, n: int) -> None:
        self.torchruns = torchruns
        self.session = session
        self._settings = settings
        self._n = n

    def start(self, index: int, *, warm: bool) -> None:
        """Start a torchrun with one worker, on a node of its own."""
        seat = seat_of(self.session, index, warm=warm)
        memory = {names.MEMORY_ENV: str(PER_POD), names.NODE_ENV: f"node-{index}"}
        root = {"PYTHONPATH": str(SCRIPT.parents[1])}
        environment = {**seat.environment, **self._settings.environment(), **memory, **root}
        start(self.torchruns, replace(seat, environment=environment), index)

    def workers(self) -> dict[str, Worker]:
        """By the name of their file; each process has one."""
        return {path.name: Worker.read(path) for path in self.torchruns.folder.glob("*.*[0-9]")}

    def trains(self, steps: int) -> None:
        """Wait until all workers of the first round have trained this many steps."""
        self.until(
            lambda: sum(len(one.trained) >= steps for one in self.workers().values()) >= self._n,
            START_SECONDS + 4 * steps * max(self._settings.seconds, 0.5),
        )

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait. Raises JobDied, and TimeoutError."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.torchruns.all_ended():
                raise JobDied(self.torchruns.log())
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:g} s\n{self.torchruns.log()}")
            time.sleep(POLL_SECONDS)

    def has_standby(self) -> None:
        """Start one more torchrun and wait until it stands by."""
        self.start(self._n, warm=True)
        await_call(self.torchruns.folder, str(self._n))

    def is_warm(self, agents: int) -> None:
        """Wait until all interpreters are ready."""
        logs = [self.torchruns.folder / f"{index}.log" for index in range(agents)]
        self.until(lambda: all(has_warm(log) for log in logs), START_SECONDS)

    def has_said(self, words: str) -> bool:
        """Whether a log has these words."""
        logs = self.torchruns.folder.glob("*.log")
        return any(words in path.read_text(errors="replace") for path in logs)

    def held(self) -> list[int]:
        """Bytes that each pod holds for checkpoints."""
        return [memfd_bytes(self.torchruns.tree(str(index))) for index in range(self._n)]


@contextlib.contextmanager
def training(ours: K8s, settings: Settings, n: int, *, warm: bool = False) -> Iterator[Job]:
    """A job of N pods with one worker each, all needed, and a place for one more."""
    with (
        started_torchruns(traced=True, script=SCRIPT) as torchruns,
        ours.session(n, n, extra=1) as session,
    ):
        job = Job(torchruns, session, settings, n)
        for index in range(n):
            job.start(index, warm=warm)
        job.trains(1)
        yield job


def memfd_bytes(processes: list[psutil.Process]) -> int:
    """Bytes of all memfds of memory checkpoints that these processes have open; each counts once."""
    found = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path).startswith(MEMFD):
                        status = os.stat(descriptor.path)
                        found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())
