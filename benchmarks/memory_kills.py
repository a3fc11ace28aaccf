"""From kill -9 to the next new step: one that was never trained before."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.k8s import K8s
from benchmarks.memory_runs import Job, Worker, training
from benchmarks.memory_worker import Settings
from benchmarks.slow_store import SCHEME
from benchmarks.torchruns import KILL_TIMEOUT_SECONDS

WORKER, AGENT = "worker", "agent, with a standby"
KINDS = (WORKER, AGENT)
MEMORY, CACHE, STORE = "memory", "folder, in the page cache", "store of 200 MB/s"
SOURCES = (MEMORY, CACHE, STORE)
RANKS = 2
STEP_SECONDS = 0.05
EVERY = 20
"""Steps between saves to a folder or store, so one second. The kill comes in the middle between two."""


@dataclass(frozen=True)
class Kill:
    """Seconds from the kill to the first step of the next round, and to its first new step, of the last
    worker each; ``redone``: the steps that were trained again in between."""

    kind: str
    source: str
    megabytes: int
    first: float
    new: float
    redone: int


def kill(ours: K8s, kind: str, source: str, megabytes: int, folder: Path) -> Kill:
    """Train, kill, and wait for a new step. Warm workers are on."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        training(ours, _settings(source, megabytes, name), RANKS, warm=True) as job,
    ):
        if kind == AGENT:
            job.has_standby()
        job.session.settled()
        job.is_warm(RANKS + (kind == AGENT))
        _await_middle(job)
        before = set(job.workers())
        killed = _kill(job, kind)
        job.until(lambda: has_new_step(job.workers(), before), KILL_TIMEOUT_SECONDS)
        if job.has_said("resumed from memory") != (source == MEMORY):
            raise RuntimeError(f"expected to resume from: {source}, see the logs\n{job.torchruns.log()}")
        return kill_of(job.workers(), before, killed, (kind, source, megabytes))


def _kill(job: Job, kind: str) -> float:
    """Returns the moment."""
    if kind == WORKER:
        return job.torchruns.kill_worker(str(RANKS - 1))
    killed = job.torchruns.kill(str(RANKS - 1))
    job.session.lost(RANKS - 1)
    return killed


def _settings(source: str, megabytes: int, folder: str) -> Settings:
    if source == MEMORY:
        return Settings(folder, megabytes, STEP_SECONDS, memory_every=1)
    url = f"{SCHEME}://{folder}" if source == STORE else folder
    return Settings(url, megabytes, STEP_SECONDS, every=EVERY)


def _await_middle(job: Job) -> None:
    """Wait until training has done half of the steps between two saves to a folder; for all sources."""
    done = furthest(job.workers().values())
    job.until(
        lambda: (step := furthest(job.workers().values())) > done + EVERY and step % EVERY == EVERY // 2,
        KILL_TIMEOUT_SECONDS,
    )


def furthest(workers: Iterable[Worker]) -> int:
    """The last step that was trained."""
    return max((max(one.trained, default=0) for one in workers), default=0)


def has_new_step(workers: dict[str, Worker], before: set[str]) -> bool:
    """Whether all processes but those of ``before`` have trained a step that these have not."""
    last = furthest(worker for name, worker in workers.items() if name in before)
    later = [worker for name, worker in workers.items() if name not in before]
    return sum(last + 1 in worker.trained for worker in later) >= RANKS


def kill_of(workers: dict[str, Worker], before: set[str], killed: float, what: tuple[str, str, int]) -> Kill:
    """The figures of a run that has a new step."""
    last = furthest(worker for name, worker in workers.items() if name in before)
    later = [worker for name, worker in workers.items() if name not in before and last + 1 in worker.trained]
    resumed = max(worker.resumed for worker in later)
    first = max(worker.trained[resumed + 1] for worker in later) - killed
    new = max(worker.trained[last + 1] for worker in later) - killed
    return Kill(*what, first, new, last - resumed)
