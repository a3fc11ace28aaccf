"""What saving every step costs a step, and the memory that pods hold for it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.k8s import K8s
from benchmarks.memory_runs import POLL_SECONDS, Job, Worker, training
from benchmarks.memory_worker import Settings, compute

WITHOUT, MEMORY, FOLDER = "without", "memory", "folder"
WAYS = (WITHOUT, MEMORY, FOLDER)
RANKS = 2
SETTLED_STEPS = 5
"""The first steps of a round are left out: the first two saves touch new memory."""
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Cost:
    """One run: milliseconds per step, all of it; seconds for which a save has stopped the rank that it
    stopped longest, the first save and the median of the others that were not skipped; saves and how many
    were skipped. ``megabytes`` are what each rank saves; ``computes``: a step is work, not waiting. ``pair``:
    those of one number took turns."""

    pair: int
    way: str
    megabytes: int
    computes: bool
    step: float
    first_stop: float | None = None
    stop: float | None = None
    saves: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class Held:
    """Megabytes that a pod holds at most, the mean of all pods, and what the formula of the docs says."""

    pods: int
    state: int
    megabytes: float
    formula: float


def turn(
    ours: K8s, pair: int, megabytes: int, seconds: float, steps: int, *, computes: bool, ways: Sequence[str]
) -> list[Cost]:
    """One run of each way; another one is the first in the next turn."""
    products = products_for(seconds) if computes else 0
    first = pair % len(ways)
    return [
        _run(ours, pair, way, megabytes, seconds, steps, products) for way in (*ways[first:], *ways[:first])
    ]


def products_for(seconds: float) -> int:
    """How many products of matrices take one core this long."""
    torch.set_num_threads(1)  # as in the worker
    compute(50)
    began = time.monotonic()
    compute(200)
    return max(1, round(200 * seconds / (time.monotonic() - began)))


def _run(ours: K8s, pair: int, way: str, megabytes: int, seconds: float, steps: int, products: int) -> Cost:
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        settings = Settings(
            folder,
            RANKS * megabytes,
            seconds,
            every=1 if way == FOLDER else None,
            memory_every=1 if way == MEMORY else None,
            products=products,
        )
        with training(ours, settings, RANKS) as job:
            job.trains(SETTLED_STEPS + steps + 2)
            workers = list(job.workers().values())
    return cost_of(workers, pair, way, megabytes, steps, computes=bool(products))


def cost_of(
    workers: Sequence[Worker], pair: int, way: str, megabytes: int, steps: int, *, computes: bool
) -> Cost:
    """The figures of a run."""
    trained = workers[0].trained
    first = min(trained) + SETTLED_STEPS
    step = 1000 * (trained[first + steps] - trained[first]) / steps
    counted = range(first, first + steps)
    stops = {one: max(worker.stopped[one] for worker in workers) for one in counted if way != WITHOUT}
    if not stops:
        return Cost(pair, way, megabytes, computes, step)
    skipped = skipped_of(workers[0])
    real = [stop for one, stop in stops.items() if one not in skipped]
    if not real:
        raise RuntimeError(f"{way}: each of {len(stops)} saves was skipped, expected some that were not")
    opening = max(worker.stopped[min(trained)] for worker in workers)
    return Cost(
        pair, way, megabytes, computes, step, opening, statistics.median(real), len(stops),
        len(stops) - len(real),
    )  # fmt: skip


def skipped_of(worker: Worker) -> set[int]:
    """The steps whose save was skipped: the count is larger after them."""
    before = [0, *worker.skipped]
    steps = sorted(worker.stopped)
    return {step for step, old, new in zip(steps, before, worker.skipped, strict=False) if new > old}


def held(ours: K8s, pods: int, state: int, steps: int) -> Held:
    """What the pods of a job hold while it trains."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(folder, state, 0.5, memory_every=1)
        with training(ours, settings, pods) as job:
            job.trains(SETTLED_STEPS)
            most = _most_held(job, SETTLED_STEPS + steps)
    return Held(pods, state, statistics.mean(most) / 1e6, 4 * state / pods)


def _most_held(job: Job, steps: int) -> list[int]:
    """The most that each pod has held until all have trained these steps."""
    most = job.held()
    while any(len(one.trained) < steps for one in job.workers().values()):
        most = [max(pair) for pair in zip(most, job.held(), strict=True)]
        time.sleep(5 * POLL_SECONDS)
    return most
