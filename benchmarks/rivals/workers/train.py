"""The training of all systems under which a change restarts the workers.

`train.py` resumes from a checkpoint in storage, which rank 0 writes; `train.py memory` saves each step to
memory, with ElasticJob's memory checkpoints.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from benchmarks.rivals.workers.model import SETTINGS, Checkpoint, Model, Stamps

Save = Callable[[int], None]


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = Model()
    if "memory" in sys.argv[1:]:
        from elasticjob.checkpoint import Checkpoints, TrainState

        state: dict[str, Any] = {"training": TrainState(model.network, model.optimizer)}
        with Checkpoints(SETTINGS["folder"], every=SETTINGS["every"], memory_every=1) as checkpoints:
            train(model, checkpoints.resume(state), lambda step: checkpoints.save(step, state))
        return
    checkpoint = Checkpoint()
    done = 0
    if found := checkpoint.load():
        done, content = found
        model.load(content)
    train(model, done, lambda step: checkpoint.save(step, model.state()) if dist.get_rank() == 0 else None)


def train(model: Model, done: int, save: Save) -> None:
    """From the last step that counts to the end."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    stamps = Stamps()
    for step in range(done + 1, SETTINGS["steps"] + 1):
        time.sleep(SETTINGS["seconds"])
        summed = model.gradients(step, rank, world_size)
        dist.all_reduce(summed)
        stamps.trained(rank, step, model.update(summed))
        save(step)


if __name__ == "__main__":
    main()
