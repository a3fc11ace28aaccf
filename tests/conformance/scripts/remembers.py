"""Trains a small model and saves each step to memory, until the file FOLDER/stop is there.

Each rank writes ROUND-RANK.json after each step: its process, from which step it resumed, the last step that
it has trained, how many saves were skipped, and the weights' sum.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from elasticjob import report_progress
from elasticjob.checkpoint import Checkpoints, TrainState


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"train": TrainState(model, optimizer)}
    number, rank = os.environ["ELASTICJOB_ROUND"], dist.get_rank()
    with Checkpoints(folder / "checkpoints", every=100_000, memory_every=1) as checkpoints:
        done = step = checkpoints.resume(state)
        while True:
            step += 1
            inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            memory = checkpoints._memory
            found: dict[str, object] = {
                "pid": os.getpid(),
                "resumed": done,
                "trained": step,
                "skipped": memory.skipped if memory else None,
                "world": dist.get_world_size(),
                "weights": float(sum(one.detach().sum() for one in model.parameters())),
            }
            put(folder / f"{number}-{rank}.json", found)
            checkpoints.save(step, state)
            report_progress(step)
            stop = torch.tensor(int((folder / "stop").exists()))
            dist.broadcast(stop, 0)
            if stop:
                break
            time.sleep(0.1)
    dist.destroy_process_group()


def put(path: Path, found: dict[str, object]) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(found))
    unfinished.replace(path)


if __name__ == "__main__":
    main()
