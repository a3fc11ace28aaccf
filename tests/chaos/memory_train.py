"""The training of a series of kills: the digits example, saved to memory at each step.

Usage: memory_train.py FOLDER STEPS SECONDS. It trains STEPS steps, or until FOLDER has a file ``stop``, and
waits SECONDS in each. Each rank writes to FOLDER/steps.jsonl from which step it has resumed, and each step
that it has trained, before it saves it: so what a kill has cost is known whoever is killed. Without
FOLDER/saves there are no checkpoints: the undisturbed run.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from elasticjob import should_stop, stop_here
from elasticjob.checkpoint import Checkpoints, TrainState
from elasticjob.data import GlobalBatches

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
SEED = 7
BATCH_SIZE = 64
LEARNING_RATE = 0.0002
STORED_EVERY = 100_000
"""Steps between saves to the folder: what is resumed from there would be noticed."""


def main() -> None:
    """Train."""
    folder, steps, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    saves = folder / "saves"
    if not saves.exists():
        train(folder, steps, seconds, None)
        return
    with Checkpoints(saves, every=STORED_EVERY, memory_every=1) as checkpoints:
        train(folder, steps, seconds, checkpoints)


def train(folder: Path, steps: int, seconds: float, checkpoints: Checkpoints | None) -> None:
    """From what is saved to the last step."""
    sys.path.insert(0, str(DIGITS))
    digits: Any = importlib.import_module("train")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    images, labels = digits.load_digits(device)[0]
    batches = GlobalBatches(len(images), batch_size=BATCH_SIZE, seed=SEED)
    torch.manual_seed(SEED)
    network = digits.build_network(32, 2)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9)
    state = {"training": TrainState(model, optimizer), "data": batches}
    done = checkpoints.resume(state) if checkpoints is not None else 0
    log = digits.StepLog(folder / "steps.jsonl")
    number = int(os.environ.get("ELASTICJOB_ROUND", "0"))
    log.write(round=number, rank=rank, resumed=done, world_size=world_size)
    for step, batch in zip(range(done + 1, steps + 1), batches.ids(), strict=False):
        ((ids, weight),) = batch
        loss = F.cross_entropy(model(images[ids]), labels[ids])
        optimizer.zero_grad()
        torch.autograd.backward(loss * weight)
        optimizer.step()
        total, stops = digits.sum_over_ranks(loss.item() * weight, (folder / "stop").exists(), device=device)
        log.write(
            round=number,
            rank=rank,
            step=step,
            **_saves_of(checkpoints),
            loss=total / world_size,
            ids=digits.fingerprint(batch.ids),
        )
        stopping = should_stop(step)
        if checkpoints is not None:
            checkpoints.save(step, state)
        if stopping:
            stop_here()
        if stops:
            return
        time.sleep(seconds)


def _saves_of(checkpoints: Checkpoints | None) -> dict[str, Any]:
    """How many saves to memory this round has skipped, because copies were under way, and whether that of the
    next step would be skipped, too, for this rank's copy."""
    memory = checkpoints._memory if checkpoints is not None else None
    if memory is None:
        return {"skipped": 0, "copying": False}
    return {"skipped": memory.skipped, "copying": not memory._state_of_last().ended}


if __name__ == "__main__":
    main()
