"""What the torchruns of `benchmarks.torchruns` run: gloo, and one small all_reduce a step.

Each step that has ended is a line in `$BENCH_STAMPS/<agent>.<pid>`: monotonic seconds and the world size.
An all_reduce has ended everywhere only if everybody took part, so a stamp is a proof of training.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEP_SECONDS = 0.05


def main() -> None:
    """Step until killed."""
    stamps = Path(os.environ["BENCH_STAMPS"]) / f"{os.environ['BENCH_AGENT']}.{os.getpid()}"
    dist.init_process_group("gloo")
    with stamps.open("w", buffering=1) as file:
        while True:
            ones = torch.ones(1)
            dist.all_reduce(ones)
            file.write(f"{time.monotonic()} {int(ones.item())}\n")
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
