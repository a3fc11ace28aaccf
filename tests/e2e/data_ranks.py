"""What the ranks of test_data.py do: real process groups with gloo train on ``GlobalBatches``."""

from __future__ import annotations

import json
import os
import signal
import traceback
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

from elasticjob.checkpoint import Checkpoints, TrainState
from elasticjob.data import GlobalBatch, GlobalBatches
from tests.e2e import checkpoint_ranks
from tests.guides.pages import program

IN_ORDER = "in order"
"""No wrapper: the page's ``backward_in_order``."""
WRAPPERS = ("ddp", "fsdp") if checkpoint_ranks.HAS_FSDP2 else ("ddp",)
SAMPLES, BATCH = 50, 24
"""The last of the three batches of an epoch has two samples: too few for three ranks."""
EVERY = 2
"""Steps from one checkpoint to the next."""


def dataset() -> TensorDataset:
    inputs = torch.randn(SAMPLES, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return TensorDataset(torch.arange(SAMPLES), inputs, inputs.sum(dim=1, keepdim=True).sin())


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 36), nn.Tanh(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 1)
    ).double()


def wrapped(wrapper: str) -> nn.Module:
    return network() if wrapper == IN_ORDER else checkpoint_ranks.wrapped(network(), wrapper)


def backward_in_order(model: nn.Module, step: GlobalBatch[Any]) -> tuple[list[int], float]:
    """As ``backward``, by the function that stands on the page."""
    names: dict[str, Any] = {"torch": torch, "dist": dist}
    exec(program("data.md", number=1), names)
    samples: list[int] = []

    def loss_of(model: nn.Module, micro_batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        numbers, inputs, targets = micro_batch
        samples.extend(numbers.tolist())
        return F.mse_loss(model(inputs), targets)

    loss = names["backward_in_order"](model, step, loss_of)
    return samples, loss


def backward(
    model: nn.Module, step: GlobalBatch[Any], *, accumulate: bool = False
) -> tuple[list[int], float]:
    """The gradients of a step; returns the samples of this rank, and its part of the loss."""
    samples: list[int] = []
    total = 0.0
    for (numbers, inputs, targets), weight in step.accumulate(model) if accumulate else step:
        loss = F.mse_loss(model(inputs), targets) * weight
        torch.autograd.backward(loss)
        samples += numbers.tolist() if weight else []
        total += loss.item()
    return samples, total


def tokens_of(micro_batch: tuple[Tensor, Tensor, Tensor]) -> float:
    """As if sample n were a text of 1 to 7 tokens."""
    return float((micro_batch[0] % 7 + 1).sum())


def token_loss(model: nn.Module, micro_batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    numbers, inputs, targets = micro_batch
    errors: Tensor = (model(inputs) - targets) ** 2
    return (errors.squeeze(1) * (numbers % 7 + 1)).sum()


def compare_tokens(differences: dict[str, float], wrapper: str) -> None:
    """The function that stands on the page, beside the same mean in one process."""
    names: dict[str, Any] = {"torch": torch, "dist": dist}
    exec(program("data.md", number=2), names)
    model, alone = wrapped(wrapper), network()
    for step in GlobalBatches(SAMPLES, batch_size=BATCH, micro_batch_size=5).load(dataset(), epochs=1):
        model.zero_grad()
        alone.zero_grad()
        whole = dataset()[step.ids]
        expected = token_loss(alone, whole) / tokens_of(whole)
        torch.autograd.backward(expected)
        found = names["backward_per_token"](model, step, token_loss, tokens_of)
        pairs = zip(gradients(model), gradients(alone), strict=True)
        differences[f"{wrapper}, tokens, {step.size}"] = max(
            abs(found - expected.item()),
            *(float((one - other).abs().max()) for one, other in pairs),
        )


def gradients(model: nn.Module) -> list[Tensor]:
    found = []
    for parameter in model.parameters():
        gradient = parameter.grad
        assert gradient is not None
        found.append(gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone())
    return found


def exact(step_ids: list[int]) -> tuple[list[Tensor], float]:
    """Of the whole global batch at once, in one process."""
    model = network()
    _, inputs, targets = dataset()[step_ids]
    loss = F.mse_loss(model(inputs), targets)
    torch.autograd.backward(loss)
    return gradients(model), loss.item()


def compare(outcome: dict[str, Any]) -> None:
    """Three steps with each wrapper, exchanging gradients in each micro batch or in the last one."""
    differences: dict[str, float] = {}
    for wrapper in WRAPPERS:
        for accumulate in (False, True):
            model = wrapped(wrapper)
            batches = GlobalBatches(SAMPLES, batch_size=BATCH, micro_batch_size=5)
            for step in batches.load(dataset(), epochs=1):
                model.zero_grad()
                _, loss = backward(model, step, accumulate=accumulate)
                expected, expected_loss = exact(step.ids)
                total = torch.tensor(loss, dtype=torch.float64)
                dist.all_reduce(total)
                pairs = zip(gradients(model), expected, strict=True)
                differences[f"{wrapper}, {accumulate}, {step.size}"] = max(
                    abs(total.item() / dist.get_world_size() - expected_loss),
                    *(float((one - other).abs().max()) for one, other in pairs),
                )
        compare_tokens(differences, wrapper)
    outcome["differences"] = differences


@dataclass(frozen=True)
class Round:
    """Trains until the end of step ``until``; ``kill`` names a rank and the step in which it dies."""

    folder: str
    number: int
    wrapper: str
    until: int
    kill: tuple[int, int] | None = None


def train(plan: Round, outcome: dict[str, Any]) -> None:
    """Appends a line for each step of this rank to a file of the round."""
    os.environ.update(ELASTICJOB_ROUND=str(plan.number), TORCHELASTIC_RUN_ID="job")
    rank = dist.get_rank()
    model = wrapped(plan.wrapper)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    in_order = plan.wrapper == IN_ORDER
    batches = GlobalBatches(
        SAMPLES, batch_size=BATCH, micro_batch_size=2 if in_order else 5, drop_last=in_order
    )
    state = {"train": TrainState(model, optimizer), "data": batches}
    with (
        Checkpoints(f"{plan.folder}/checkpoints") as checkpoints,
        open(f"{plan.folder}/round-{plan.number}-rank-{rank}", "w") as log,
    ):
        done = checkpoints.resume(state)
        outcome["resumed"] = done
        steps = range(done + 1, plan.until + 1)
        for step, batch in zip(
            steps, batches.load(dataset(), num_workers=1, multiprocessing_context="fork"), strict=False
        ):
            if in_order:
                samples, loss = backward_in_order(model, batch)
                loss = loss if rank == 0 else 0.0
            else:
                samples, loss = backward(model, batch, accumulate=step % 2 == 0)
                loss /= dist.get_world_size()
            if plan.kill == (rank, step):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
            print(json.dumps([step, samples, loss]), file=log, flush=True)
            if step % EVERY == 0:
                checkpoints.save(step, state)


def run(rank: int, world_size: int, meeting: str, plan: Round | None, results: Queue[Any]) -> None:
    """The process of one rank; puts (rank, outcome) into ``results``."""
    outcome: dict[str, Any] = {"error": ""}
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
        if plan is None:
            compare(outcome)
        else:
            train(plan, outcome)
        dist.destroy_process_group()
    except Exception:  # noqa: BLE001  # the parent shows it
        outcome["error"] = traceback.format_exc()
    results.put((rank, outcome))
