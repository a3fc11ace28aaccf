"""The measurements with real torchruns: kill -9 to the next round's first step, and the bare worker start.

A kill takes a torchrun and its workers together, as the end of a container does. The replacement is a new
torchrun, started at that moment: its figure holds the start of Python, the import of torch in the agent and
again in the workers, and of that the rendezvous is the smallest part. `worker_start` is the same under
`torchrun --standalone`, from the start of torchrun to the first step: what no rendezvous could save.
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

from benchmarks.backends import Backend, Seat
from benchmarks.results import JOB_DIED, TIMEOUT, Outcome
from benchmarks.zygote import QUIET

AGENTS = 2
START_TIMEOUT_SECONDS = 120.0
KILL_TIMEOUT_SECONDS = 180.0
_TORCHRUN = Path(sys.executable).parent / "torchrun"
SCRIPT = Path(__file__).parent / "worker.py"
TRACED = Path(__file__).parent / "traced.py"
_POLL_SECONDS = 0.02
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
        process = psutil.Process(self._processes[agent].pid)
        everything = [process, *process.children(recursive=True)]
        return sum(one.memory_full_info().uss for one in everything)

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for agent in list(self._processes):
            self.kill(agent)

    def all_ended(self) -> bool:
        """Whether no torchrun is left."""
        return all(process.poll() is not None for process in self._processes.values())

    def first_step(self, agents: Sequence[str], workers: int, world_size: int, since: float) -> float | None:
        """When the last of the agents' workers ended its first step since then in a world of that size.

        None until each agent has `workers` workers that did, all of them started after `since`.
        """
        times: list[float] = []
        for agent in agents:
            firsts = [
                first
                for path in self.folder.glob(f"{agent}.*[0-9]")
                if (first := _first_stamp(path, world_size)) is not None and first > since
            ]
            if len(firsts) < workers:
                return None
            times += sorted(firsts)[:workers]
        return max(times)

    def log(self) -> str:
        """The last lines of every torchrun, for a measurement that failed."""
        tails = (path.read_bytes()[-_LOG_BYTES:].decode(errors="replace") for path in self._logs())
        return "\n".join(tails)

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))


def kill_to_first_step(backend: Backend) -> Outcome:
    """Two torchruns with one worker each, kill -9 of the second, a new torchrun at once."""
    with started_torchruns() as torchruns, backend.session(AGENTS, AGENTS, extra=1) as session:
        for index in range(AGENTS):
            start(torchruns, session.seat(index), index)
        started = time.monotonic()
        first = _await_step(torchruns, ["0", "1"], 1, AGENTS, 0.0, started + START_TIMEOUT_SECONDS)
        if first.seconds is None:
            return first
        session.settled()
        seat = session.seat(AGENTS)
        killed = torchruns.kill("1")
        start(torchruns, seat, AGENTS)
        session.lost(1)
        return _await_step(torchruns, ["0", "2"], 1, AGENTS, killed, killed + KILL_TIMEOUT_SECONDS)


def worker_start(workers: int) -> Outcome:
    """Seconds from the start of `torchrun --standalone` to the first step of its workers."""
    with started_torchruns() as torchruns:
        started = time.monotonic()
        torchruns.start("0", ["--standalone", f"--nproc-per-node={workers}"], {})
        return _await_step(torchruns, ["0"], workers, workers, started, started + START_TIMEOUT_SECONDS)


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
    torchruns.start(str(index), arguments, seat.environment)


def _await_step(
    torchruns: Torchruns, agents: Sequence[str], workers: int, world_size: int, since: float, deadline: float
) -> Outcome:
    while time.monotonic() < deadline:
        step = torchruns.first_step(agents, workers, world_size, since)
        if step is not None:
            return Outcome(step - since)
        if torchruns.all_ended():
            return Outcome(None, JOB_DIED, torchruns.log())
        time.sleep(_POLL_SECONDS)
    return Outcome(None, TIMEOUT, torchruns.log())


def _first_stamp(path: Path, world_size: int) -> float | None:
    for line in path.read_text().splitlines():
        seconds, _, size = line.partition(" ")
        if size == str(world_size):
            return float(seconds)
    return None
