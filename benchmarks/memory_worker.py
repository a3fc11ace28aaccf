"""What `benchmarks.memory_checkpoints` trains: steps of a given length, saved to memory or to a folder.

All ranks hold the same state, as with DDP, so each saves its share of it. Its settings are in the
environment, as `Settings` says. Each line of `$BENCH_STAMPS/<agent>.<pid>` has a name, a step and seconds:
`resumed STEP AT`; for each step `trained STEP AT`, after an all_reduce in which all ranks took part, and
`saved STEP SECONDS`, for which `save` has stopped training; `skipped COUNT AT` has how many saves to memory
were skipped so far. AT is of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import elasticjob

SETTINGS_ENV = "BENCH_MEMORY_SETTINGS"
TENSORS = 25
SIZE = 256
MEGABYTE = 10**6
NEVER = 10**9


@dataclass(frozen=True)
class Settings:
    """``folder``: for checkpoints, or a URL. ``every`` steps are saved there, ``memory_every`` steps to
    memory; None: not at all. The state has ``megabytes`` in all. A step takes ``seconds``, in which a
    worker computes ``products`` of matrices, or only waits if there are 0."""

    folder: str
    megabytes: int
    seconds: float
    every: int | None = None
    memory_every: int | None = None
    products: int = 0

    def environment(self) -> dict[str, str]:
        """With which the worker is started."""
        return {SETTINGS_ENV: json.dumps(asdict(self))}


def main() -> None:
    """Step until killed."""
    settings = Settings(**json.loads(os.environ[SETTINGS_ENV]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state = new_state(settings.megabytes)
    stamps = Path(os.environ["BENCH_STAMPS"]) / f"{os.environ['BENCH_AGENT']}.{os.getpid()}"
    with stamps.open("w", buffering=1) as file:
        if settings.every is None and settings.memory_every is None:
            train(settings, state, file, None)
        from benchmarks import slow_store
        from elasticjob.checkpoint import Checkpoints

        slow_store.register()
        with Checkpoints(
            settings.folder, every=settings.every or NEVER, memory_every=settings.memory_every
        ) as checkpoints:
            train(settings, state, file, checkpoints)


def new_state(megabytes: int) -> dict[str, Any]:
    """Tensors of this size in all."""
    elements = megabytes * MEGABYTE // 4 // TENSORS
    return {f"tensor{number}": torch.zeros(elements) for number in range(TENSORS)}


def train(settings: Settings, state: dict[str, Any], file: Any, checkpoints: Any) -> None:
    """Resume, then step and save without end."""
    done = checkpoints.resume(state) if checkpoints is not None else 0
    file.write(f"resumed {done} {time.monotonic()}\n")
    for step in count(done + 1):
        step_once(settings, state)
        file.write(f"trained {step} {time.monotonic()}\n")
        if checkpoints is not None:
            began = time.monotonic()
            checkpoints.save(step, state)
            file.write(f"saved {step} {time.monotonic() - began}\n")
            memory = checkpoints._memory
            if settings.memory_every and memory is None:
                raise RuntimeError("this job has no memory for checkpoints, see the log")
            if memory is not None:
                file.write(f"skipped {memory.skipped} {time.monotonic()}\n")
        elasticjob.report_progress(step)


def step_once(settings: Settings, state: dict[str, Any]) -> None:
    """Compute or wait, change all of the state's tensors a little, and meet the other ranks."""
    if settings.products:
        compute(settings.products)
    else:
        time.sleep(settings.seconds)
    for tensor in state.values():
        tensor[0] += 1.0
    one = torch.ones(1)
    dist.all_reduce(one)


def compute(products: int) -> None:
    """Keep one core busy."""
    product = torch.eye(SIZE)
    for _ in range(products):
        product = product @ product


if __name__ == "__main__":
    main()
