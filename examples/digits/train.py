"""Train a classifier of handwritten digits with DistributedDataParallel, and resume wherever it was.

An ordinary torchrun script. It asks after each step whether to stop for a planned change, which says its
steps, too, and does what any script must do that is to survive a change of its world size:

- the *global* batch is the same at every world size, so that the loss curve is too (GlobalBatches);
- the position and the optimizer are in the checkpoint, and all ranks resume from the one that rank 0
  chose (checkpoint.py).

The data are the 1,797 real 8x8 images that scikit-learn ships: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checkpoint import Checkpoint, Token, checkpoints, claim, save
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from elasticjob import should_stop, stop_here
from elasticjob.data import GlobalBatches

ROUND = int(os.environ.get("ELASTICJOB_ROUND", "0"))
"""The round this process belongs to; 0 outside an ElasticJob."""
JOB = os.environ.get("TORCHELASTIC_RUN_ID", "")
"""Tells this job from others that used the same checkpoint directory."""


@record  # so that the message of an exception reaches torchrun, and from there the job's status
def main() -> None:
    options = parse_options()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = choose_device()
    dist.init_process_group(backend="nccl" if device.type == "cuda" else "gloo")
    train(options, device)
    dist.barrier()  # gloo before torch 2.8 may hang below if its thread still drops a tensor of the last step
    dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train from the newest checkpoint to the last step, then evaluate and write the result."""
    started = time.monotonic()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set, test_set = load_digits(device)
    batches = GlobalBatches(len(train_set[0]), batch_size=options.batch_size, seed=options.seed)
    last_step = options.epochs * batches.steps_per_epoch

    torch.manual_seed(options.seed)
    network = build_network(options.width, options.depth).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=options.learning_rate, momentum=0.9)
    token, resumed = agree_on_checkpoint(options.checkpoint_dir)
    first_step = step = restore(resumed, options, network, optimizer, batches) if resumed else 0
    model = DistributedDataParallel(network)
    step_log = StepLog(options.step_log if rank == 0 else None)
    say(
        f"round {ROUND}: world size {world_size} on {device.type}, steps {step} to {last_step}, "
        + (f"resumed from {resumed.path.name}" if resumed else "from scratch")
    )

    for step, batch in zip(range(first_step + 1, last_step + 1), batches.ids(), strict=False):
        ((ids, weight),) = batch  # one micro batch: this rank's share
        loss = F.cross_entropy(model(train_set[0][ids]), train_set[1][ids])
        optimizer.zero_grad()
        torch.autograd.backward(loss * weight)
        optimizer.step()

        mine = ids if weight else []  # without a sample of its own, a rank takes part with another's
        total_loss, trained, id_sum = sum_over_ranks(
            loss.item() * weight, len(mine), sum(mine), device=device
        )
        if (trained, id_sum) != (batch.size, sum(batch.ids)):
            raise RuntimeError(f"step {step}: the ranks' shares do not add up to the global batch")
        mean_loss, epoch = total_loss / world_size, batch.epoch
        stopping = should_stop(step)  # at the same step on all ranks
        step_log.write(
            step=step,
            epoch=epoch,
            ids=fingerprint(batch.ids),
            loss=mean_loss,
            world_size=world_size,
            round=ROUND,
            time=time.time(),
        )
        if step % options.log_every == 0 or step == last_step:
            say(f"step {step}/{last_step}  epoch {epoch}  loss {mean_loss:.4f}")
        if rank == 0 and (step % options.checkpoint_every == 0 or step == last_step or stopping):
            state = {
                "shape": shape_of(options),
                "data": batches.state_dict(),
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            save(options.checkpoint_dir, token, step, JOB, state)
        if stopping:
            say(f"round {ROUND}: stopped at step {step} for a planned change")
            stop_here()

    if rank == 0:
        accuracy = evaluate(network, test_set)[1]
        write_json(
            options.checkpoint_dir / "result.json",
            {
                "accuracy": accuracy,
                "final_loss": evaluate(network, train_set)[0],
                "steps": step,
                "resumed_from_step": first_step,
                "seconds": round(time.monotonic() - started, 3),
                "world_size": world_size,
                "round": ROUND,
            },
        )
        say(f"accuracy {accuracy:.4f} on {len(test_set[0])} images that it was not trained on")


def choose_device() -> torch.device:
    """The GPU of this process, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def load_digits(device: torch.device) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(images, labels) to train on, and a fifth of them, held out, to test with.

    Reads the file that scikit-learn carries. Importing ``sklearn.datasets`` for it would cost a second
    or two (it imports scipy), and again at every restart.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "The images come with scikit-learn, which is not installed: pip install scikit-learn"
        )
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1] / 16).to(device)
    labels = torch.from_numpy(table[:, -1].astype(np.int64)).to(device)
    held_out = torch.arange(len(table), device=device) % 5 == 0
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def build_network(width: int, depth: int) -> nn.Module:
    """A plain stack of layers, wide enough to give the processors something to do.

    LayerNorm, because BatchNorm's statistics would depend on the world size. SiLU and not ReLU: each
    world size sums gradients in another order, and ReLU's kink amplifies the rounding (largest
    difference of a step's loss between world sizes 1 and 2, measured: 8e-3, with SiLU 2e-6).
    """
    layers: list[nn.Module] = []
    for inputs in [64] + [width] * (depth - 1):
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def agree_on_checkpoint(directory: Path) -> tuple[Token, Checkpoint | None]:
    """Rank 0 looks, all follow: a directory listing may differ between nodes and moments."""
    choice: list[Any] = [None]
    if dist.get_rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        newest = max(checkpoints(directory), default=None)
        choice = [(claim(newest, JOB, ROUND), newest)]
    dist.broadcast_object_list(choice, src=0)
    token, newest = choice[0]
    return token, newest


def restore(
    checkpoint: Checkpoint,
    options: argparse.Namespace,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: GlobalBatches,
) -> int:
    """Load ``checkpoint`` and return the number of steps that it stands for."""
    state = checkpoint.load()
    if state["shape"] != shape_of(options):
        raise ValueError(
            f"{checkpoint.path} is of a run with {state['shape']}, this one has {shape_of(options)}: "
            "use the same options or another --checkpoint-dir."
        )
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    batches.load_state_dict(state["data"])
    return int(state["step"])


def shape_of(options: argparse.Namespace) -> dict[str, int]:
    """The options that must be the same when a run is resumed."""
    return {name: getattr(options, name) for name in ("batch_size", "seed", "width", "depth")}


def fingerprint(ids: list[int]) -> str:
    """12 hex digits that stand for these samples in this order."""
    return hashlib.sha256(np.array(ids, "<i8").tobytes()).hexdigest()[:12]


def sum_over_ranks(*values: float, device: torch.device) -> list[float]:
    """Add up each value over all ranks."""
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()


@torch.no_grad()
def evaluate(network: nn.Module, dataset: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """(mean loss, share of right answers)."""
    images, labels = dataset
    scores = network(images)
    right = (scores.argmax(dim=1) == labels).double().mean()
    return F.cross_entropy(scores, labels).item(), right.item()


class StepLog:
    """One line of JSON per step, appended by a single write so that a kill leaves no torn line."""

    def __init__(self, path: Path | None) -> None:
        self._fd: int | None = None
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **fields: object) -> None:
        if self._fd is not None:
            os.write(self._fd, (json.dumps(fields) + "\n").encode())


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write a small file in one piece."""
    unfinished = path.with_suffix(f".tmp-{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(path)


def say(line: str) -> None:
    """Print on rank 0, at once."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--step-log", type=Path, metavar="FILE", help="one line of JSON per step")
    parser.add_argument("--log-every", type=int, default=50, metavar="STEPS", help="lines on stdout")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--width", type=int, default=512, help="neurons per hidden layer")
    parser.add_argument("--depth", type=int, default=4, help="hidden layers")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
