"""The training of all systems under which a change restarts the workers.

`train.py` resumes from a checkpoint in storage, which rank 0 writes; `train.py progress` reports each step to
ElasticJob, as its scripts do; `train.py progress memory` saves each step to memory, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from benchmarks.rivals.workers.model import SETTINGS, Checkpoint, Model, Stamps

OfStep = Callable[[int], None]
"""What is done with a step that was trained."""


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = Model()
    report: OfStep = ignore
    if "progress" in sys.argv[1:]:
        from elasticjob import report_progress as report
    if "memory" in sys.argv[1:]:
        from elasticjob.checkpoint import Checkpoints, TrainState

        state: dict[str, Any] = {"training": TrainState(model.network, model.optimizer)}
        with Checkpoints(SETTINGS["folder"], every=SETTINGS["every"], memory_every=1) as checkpoints:
            train(model, checkpoints.resume(state), lambda step: checkpoints.save(step, state), report)
        return
    checkpoint = Checkpoint()
    done = 0
    if found := checkpoint.load():
        done, content = found
        model.load(content)

    def save(step: int) -> None:
        if dist.get_rank() == 0:
            checkpoint.save(step, model.state())

    train(model, done, save, report)


def ignore(step: int) -> None:
    """Under a system that asks for no progress."""
    del step


def train(model: Model, done: int, save: OfStep, report: OfStep) -> None:
    """From the last step that counts to the end."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    stamps = Stamps()
    for step in range(done + 1, SETTINGS["steps"] + 1):
        time.sleep(SETTINGS["seconds"])
        summed = model.gradients(step, rank, world_size)
        dist.all_reduce(summed)
        stamps.trained(rank, step, model.update(summed))
        report(step)
        save(step)


if __name__ == "__main__":
    main()
