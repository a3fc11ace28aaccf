"""What the torchruns of `benchmarks.torchruns` run: gloo, and steps of an optimizer with one all_reduce each.

The optimizer counts: the first one of a process imports `torch._dynamo`, which takes as long as torch.

Each step that has ended is a line in `$BENCH_STAMPS/<agent>.<pid>`: monotonic seconds and the world size.
An all_reduce has ended everywhere only if all took part, so a stamp is a proof of training. Before the
steps come three lines with a name and monotonic seconds: started, imported, initialised.
"""

# ruff: noqa: E402 - the first stamp comes before all imports

from __future__ import annotations

import time

_STARTED = time.monotonic()

import os
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

_IMPORTED = time.monotonic()
import elasticjob

STEP_SECONDS = 0.05


def main() -> None:
    """Step until killed."""
    stamps = Path(os.environ["BENCH_STAMPS"]) / f"{os.environ['BENCH_AGENT']}.{os.getpid()}"
    with stamps.open("w", buffering=1) as file:
        file.write(f"started {_STARTED}\nimported {_IMPORTED}\n")
        dist.init_process_group("gloo")
        file.write(f"initialised {time.monotonic()}\n")
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in count():
            weight.grad = torch.ones(1)
            dist.all_reduce(weight.grad)
            workers = int(weight.grad.item())
            optimizer.step()
            file.write(f"{time.monotonic()} {workers}\n")
            elasticjob.report_progress(step)  # does nothing under another backend
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
