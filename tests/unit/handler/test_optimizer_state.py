"""A parameter that had no gradient before a save, such as a part of the model that no sample has come to yet:
a run that is resumed from it goes on as one that was never interrupted, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.nn.parallel import DistributedDataParallel

from elasticjob.checkpoint import Checkpoints, TrainState
from elasticjob.checkpoint.state import entries
from elasticjob.contract.names import MEMORY_AGENT_ENV, ROUND_ENV
from tests.unit.memory.agents import Pod, begin

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6
    fully_shard = None  # type: ignore[assignment]

STEPS = 6
ROUTED = 4
"""From this step on samples come to the expert."""

Optimizer = Callable[..., torch.optim.Optimizer]
Wrap = Callable[[nn.Module], nn.Module]

OPTIMIZERS: dict[str, Optimizer] = {
    "AdamW": partial(torch.optim.AdamW, lr=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "SGD": partial(torch.optim.SGD, lr=0.1),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.expert = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, routed: bool) -> torch.Tensor:
        x = self.trunk(x)
        routed_there: torch.Tensor = self.expert(x) if routed else x
        return routed_there


def plain(model: nn.Module) -> nn.Module:
    return model


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True)


def fsdp(model: nn.Module) -> nn.Module:
    if fully_shard is None:
        pytest.skip("FSDP2 is in torch.distributed.fsdp from torch 2.6 on")
    fully_shard(model)
    return model


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Run:
    """A training run of one rank."""

    def __init__(self, wrap: Wrap, optimizer: Optimizer) -> None:
        torch.manual_seed(0)
        self.model = wrap(Model())
        self.optimizer = optimizer(self.model.parameters())
        self.state = {"train": TrainState(self.model, self.optimizer)}

    def step(self, number: int) -> None:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        torch.autograd.backward(self.model(x, number >= ROUTED).square().mean())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def found(self) -> list[torch.Tensor]:
        """The parameters, and what the optimizer knows of them."""
        tensors: list[torch.Tensor] = []
        for parameter in self.model.parameters():
            tensors += [parameter.detach(), *self.optimizer.state.get(parameter, {}).values()]
        return [one.full_tensor() if hasattr(one, "full_tensor") else one for one in tensors]


def undisturbed(wrap: Wrap, optimizer: Optimizer, steps: int) -> list[torch.Tensor]:
    run = Run(wrap, optimizer)
    for step in range(1, steps + 1):
        run.step(step)
    return run.found()


def resumed(wrap: Wrap, optimizer: Optimizer, folder: Path, until: int) -> Run:
    """One that goes on from the newest checkpoint, and saves each step."""
    run = Run(wrap, optimizer)
    with Checkpoints(folder) as checkpoints:
        for step in range(checkpoints.resume(run.state) + 1, until + 1):
            run.step(step)
            checkpoints.save(step, run.state)
    return run


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("wrap", [plain, ddp, fsdp])
def test_a_parameter_without_a_gradient_before_the_save(
    wrap: Wrap, optimizer: Optimizer, tmp_path: Path
) -> None:
    for until in (2, 3, 5, STEPS):
        run = resumed(wrap, optimizer, tmp_path, until)
        assert_same(run.found(), undisturbed(wrap, optimizer, until))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("wrap", [plain, ddp, fsdp])
def test_a_save_before_the_first_step_changes_nothing(
    wrap: Wrap, optimizer: Optimizer, tmp_path: Path
) -> None:
    """Adam does not count a step, and with torch 2.4 SGD without momentum may have gradients."""
    for _ in ("the run that saves", "the run that resumes from it"):
        run = Run(wrap, optimizer)
        with Checkpoints(tmp_path) as checkpoints:
            assert checkpoints.resume(run.state) == 0
            checkpoints.save(0, run.state)
            checkpoints.wait()
            run.step(1)
            torch.autograd.backward(run.model(torch.ones(1, 4), False).sum())
            entries(run.state)
        assert_same(run.found(), undisturbed(wrap, optimizer, 1))


def test_what_ddp_has_saved_is_loaded_without_it(tmp_path: Path) -> None:
    optimizer = OPTIMIZERS["AdamW"]
    for wrap, until in ((ddp, 2), (plain, 3), (ddp, 5), (plain, STEPS)):
        run = resumed(wrap, optimizer, tmp_path, until)
    assert_same(run.found(), undisturbed(plain, optimizer, STEPS))


def test_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, optimizer = Pod(limit=64 << 20), OPTIMIZERS["AdamW"]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "A")
    for number, until in enumerate((2, 3, STEPS), start=1):
        begin(number, pod)
        monkeypatch.setenv(ROUND_ENV, str(number))
        monkeypatch.setenv(MEMORY_AGENT_ENV, pod.where)
        run = Run(ddp, optimizer)
        with Checkpoints(tmp_path, every=100, memory_every=1) as checkpoints:
            done = checkpoints.resume(run.state)
            for step in range(done + 1, until + 1):
                run.step(step)
                checkpoints.save(step, run.state)
                assert checkpoints._memory is not None
                checkpoints._memory.await_copies(30)
        assert done == (0, 2, 3)[number - 1]
    pod.close()
    assert_same(run.found(), undisturbed(plain, optimizer, STEPS))


def test_what_a_parameter_has_only_some_of_is_an_error(tmp_path: Path) -> None:
    """So are entries that are no TrainState, and keys of the model."""
    run = Run(plain, OPTIMIZERS["AdamW"])
    run.step(1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {**run.state, "other": {"optimizer": {"state": {"a": {"step": 1}}}}})
    more = Run(plain, partial(torch.optim.AdamW, lr=0.1, amsgrad=True))
    longer = Run(plain, OPTIMIZERS["AdamW"])
    longer.model.added = nn.Linear(4, 4)
    other = {"other": {"optimizer": {"state": {"a": {"step": 0}, "b": {"step": 0}}}}}
    for state, key in (
        (more.state, "train.optimizer.state.trunk.weight.max_exp_avg_sq"),
        (longer.state, "train.model.added.weight"),
        (other, "other.optimizer.state.b.step"),
    ):
        with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointException) as raised:
            checkpoints.resume(dict(state))
        assert str(raised.value.failures[0][0]) == f"Missing key in checkpoint state_dict: {key}."
