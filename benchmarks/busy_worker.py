"""What `benchmarks.warm_cost` trains: steps of arithmetic on one core, with one all_reduce each.

Each step that has ended is a line in `$BENCH_STAMPS/<agent>.<pid>`, as in `worker.py`. The steps are
reported, so that interpreters for the next round are made after the first.
"""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

import elasticjob

SIZE = 256
PRODUCTS = 20


def main() -> None:
    """Step until killed."""
    stamps = Path(os.environ["BENCH_STAMPS"]) / f"{os.environ['BENCH_AGENT']}.{os.getpid()}"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.eye(SIZE))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with stamps.open("w", buffering=1) as file:
        for step in count():
            product = weight.detach()
            for _ in range(PRODUCTS):
                product = product @ product
            weight.grad = product
            dist.all_reduce(weight.grad)
            optimizer.step()
            file.write(f"{time.monotonic()} {dist.get_world_size()}\n")
            elasticjob.report_progress(step)


if __name__ == "__main__":
    main()
