"""What the ranks of checkpoint_rounds.py do: a small model, trained by a real process group with gloo.

The global batch of a step is the same at every world size, so that the losses tell whether a run that was
resumed is the run that was interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import signal
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # an optimizer imports it, which takes seconds: here once for all processes
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from elasticjob.checkpoint import Checkpoints, TrainState
from elasticjob.contract.names import MEMORY_AGENT_ENV
from tests.e2e import checkpoint_moments

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6
    fully_shard = None  # type: ignore[assignment]

HAS_FSDP2 = fully_shard is not None
BATCH = 24  # 4, 3, 2 and 1 divide it


@dataclass(frozen=True)
class Plan:
    """What one round does. ``hold`` and ``kill`` name a moment within a save."""

    folder: str
    round: int | None
    until: int
    every: int = 2
    job: str = "job"
    wrapper: str = "fsdp"
    """Or ddp, or none."""
    keep: int = 2
    kill: tuple[str, int, int] | None = None
    """(moment, rank, step): SIGKILL there."""
    stop: tuple[str, int, int] | None = None
    """The same with SIGSTOP."""
    hold: tuple[str, int, str] | None = None
    """(moment, step, path): rank 0 makes a file ``path`` there and waits until it is gone."""
    timeout: float = 600
    stay: bool = False
    """Whether a rank whose training has failed stays alive, with its connections."""
    environment: dict[str, str] = field(default_factory=dict)
    agents: tuple[str, ...] = ()
    """By rank: where its agent is. Each step is saved to memory then."""
    patient: bool = True
    """Whether each save to memory is awaited, so that none is skipped."""


def run(rank: int, world_size: int, meeting: str, plan: Plan, results: Queue[Any]) -> None:
    """The process of one rank; puts (rank, outcome) into ``results``."""
    lines: list[str] = []
    outcome: dict[str, Any] = {"log": lines, "error": "", "losses": {}}
    try:
        os.environ.update(plan.environment)
        os.environ.update(TORCHELASTIC_RUN_ID=plan.job, LOCAL_RANK=str(rank))
        os.environ.pop("ELASTICJOB_ROUND", None)
        if plan.round is not None:
            os.environ["ELASTICJOB_ROUND"] = str(plan.round)
        if plan.agents:
            os.environ[MEMORY_AGENT_ENV] = plan.agents[rank]
        torch.set_num_threads(1)
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("elasticjob.checkpoint").addHandler(handler)
        logging.getLogger("elasticjob.checkpoint").setLevel(logging.INFO)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
        train(rank, world_size, plan, outcome)
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001  # the parent raises it
        outcome["error"] = f"{type(error).__name__}: {error}"
        outcome["traceback"] = traceback.format_exc()
    results.put((rank, outcome))
    while plan.stay and outcome["error"]:
        time.sleep(1)


class Losses:
    """One string to DCP: of a dictionary it would load the keys that are there already."""

    def __init__(self) -> None:
        self.by_step: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"json": json.dumps(self.by_step)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.by_step = json.loads(state_dict["json"])


def train(rank: int, world_size: int, plan: Plan, outcome: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(12, 36), nn.Tanh(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 1)
    )
    model = wrapped(model, plan.wrapper)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = Losses()
    state: dict[str, Any] = {"train": TrainState(model, optimizer), "losses": losses}
    trouble(rank, plan)
    to_memory: dict[str, Any] = {"every": plan.every, "memory_every": 1} if plan.agents else {}
    with Checkpoints(plan.folder, keep=plan.keep, timeout=plan.timeout, **to_memory) as checkpoints:
        done = checkpoints.resume(state)
        outcome["resumed"] = done
        for step in range(done + 1, plan.until + 1):
            generator = torch.Generator().manual_seed(step)
            inputs = torch.randn(BATCH, 12, generator=generator)
            part = slice(BATCH * rank // world_size, BATCH * (rank + 1) // world_size)
            loss = F.mse_loss(model(inputs[part]), inputs[part].sum(dim=1, keepdim=True))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            if plan.wrapper == "none":
                average(model)
            optimizer.step()
            total = loss.detach()
            dist.all_reduce(total)
            losses.by_step[str(step)] = float(total) / world_size
            if plan.agents or step % plan.every == 0:
                checkpoints.save(step, state)
            if plan.agents and checkpoints._memory is not None and plan.patient:
                checkpoints._memory.await_copies(60)
        if checkpoints._memory is not None:
            outcome["skipped"] = checkpoints._memory.skipped
            outcome["saved"] = checkpoints._memory.saved
    outcome["losses"] = losses.by_step


def wrapped(model: nn.Module, wrapper: str) -> nn.Module:
    if wrapper == "fsdp":
        for layer in model.children():
            fully_shard(layer)
        fully_shard(model)
        return model
    if wrapper == "none":
        return model
    return nn.parallel.DistributedDataParallel(model)


def average(model: nn.Module) -> None:
    """What a wrapper does with gradients."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def trouble(rank: int, plan: Plan) -> None:
    """Patch what writes, to be killed or held there."""
    planned, number = (plan.kill, signal.SIGKILL) if plan.kill else (plan.stop, signal.SIGSTOP)
    if planned and planned[1] == rank:
        moment, _, step = planned
        checkpoint_moments.at(moment, step, lambda: os.kill(os.getpid(), number))
    if plan.hold and rank == 0:
        moment, held_step, path = plan.hold

        def wait() -> None:
            Path(path).touch()
            while Path(path).exists():
                time.sleep(0.02)

        if moment == "check":
            original = Checkpoints._complete

            def complete(self: Any, name: Any, files: Any) -> None:
                if name.step == held_step:
                    wait()
                original(self, name, files)

            Checkpoints._complete = complete  # type: ignore[method-assign]
        else:
            checkpoint_moments.at(moment, held_step, wait)


def run_program(
    path: str, rank: int, ranks: int, port: int, environment: dict[str, str], output: str
) -> None:
    """The process of one rank of a whole program, in the environment that torchrun gives."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), TORCHELASTIC_RUN_ID="job")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    runpy.run_path(path, run_name="__main__")
