"""Each rank copies and writes its share of a state, and a plan is made once for saves that are alike."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, default_planner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.device_mesh import init_device_mesh

from elasticjob.checkpoint import CheckpointError, Checkpoints
from elasticjob.checkpoint.share import SharePlanner, is_as_before

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor

RANKS = 3
State = Mapping[str, Any]


def state(tensors: int = 12) -> dict[str, Any]:
    return {"step": 7, **{f"tensor{n}": torch.full((100,), float(n)) for n in range(tensors)}}


def ranks() -> list[SharePlanner]:
    return [SharePlanner() for _ in range(RANKS)]


def planned(planners: list[SharePlanner], states: list[State]) -> tuple[list[SavePlan], Metadata]:
    """What each rank sends to rank 0 for a save, which is then copied, and its metadata."""
    for planner, one in zip(planners, states, strict=True):
        planner.begin()
        planner.set_up_planner(dict(one), is_coordinator=planner is planners[0])
    sent = [planner.create_local_plan() for planner in planners]
    plans, metadata = planners[0].create_global_plan(sent)
    with ThreadPoolExecutor(RANKS) as pool:
        finishing = [
            pool.submit(planner.finish_plan, plan) for planner, plan in zip(planners, plans, strict=True)
        ]
        for planner, finish in zip(planners, finishing, strict=True):
            planner.copy(finish)
    return sent, metadata


def written(planner: SharePlanner) -> dict[str, torch.Tensor | io.BytesIO]:
    """What a rank writes."""
    assert planner._final is not None
    return {item.index.fqn: planner.resolve_data(item) for item in planner._final.items}


def test_each_entry_is_copied_by_one_rank() -> None:
    planners, given = ranks(), state()
    planned(planners, [given] * RANKS)
    shares = [written(planner) for planner in planners]
    assert sorted(name for share in shares for name in share) == sorted(given)
    assert all(3 <= len(share) <= 5 for share in shares)


def test_what_is_written_is_the_state_of_the_call() -> None:
    planners, given = ranks(), state()
    planned(planners, [given] * RANKS)
    for n in range(12):
        given[f"tensor{n}"].zero_()
    for name, copy in (pair for planner in planners for pair in written(planner).items()):
        if isinstance(copy, torch.Tensor):
            assert copy.equal(torch.full((100,), float(name.removeprefix("tensor"))))


def test_saves_that_are_alike_are_planned_once() -> None:
    planners = ranks()
    _, first = planned(planners, [state()] * RANKS)
    finals = [planner._final for planner in planners]
    sent, second = planned(planners, [state()] * RANKS)
    assert not any(plan.items for plan in sent)
    assert [planner._final for planner in planners] == finals
    assert second == first
    assert second is not first, "DCP writes into it"


def variants() -> dict[str, Any]:
    """Values of one entry: some have the same plan, most have not."""
    mesh = init_device_mesh("cpu", (1,))
    tensor = torch.zeros(6, 4)
    return {
        "float": tensor,
        "other values": torch.ones(6, 4),
        "shape": torch.zeros(4, 6),
        "a part": torch.zeros(7, 4)[1:],
        "double": tensor.double(),
        "parameter": torch.nn.Parameter(tensor),
        "parameter without gradient": torch.nn.Parameter(tensor, requires_grad=False),
        "number": 7,
        "text": "seven",
        "nested": {"a": tensor},
        "otherwise nested": {"a": 7},
        "list": [tensor, 7],
        "sharded": distribute_tensor(tensor, mesh, [Shard(0)]),
        "sharded by columns": distribute_tensor(tensor, mesh, [Shard(1)]),
        "sharded, other values": distribute_tensor(tensor + 1, mesh, [Shard(0)]),
        "replicated": distribute_tensor(tensor, mesh, [Replicate()]),
        "sharded double": distribute_tensor(tensor.double(), mesh, [Shard(0)]),
        "of a class of its own": torch.zeros(6, 4).as_subclass(OfItsOwn),
    }


class OfItsOwn(torch.Tensor):
    """As quantised tensors are."""


def test_what_is_like_before_has_the_same_plan_and_is_found_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, plan = list[dict[str, Any]](), default_planner.create_default_local_save_plan

    def noted(state: dict[str, Any], is_coordinator: bool) -> SavePlan:
        made.append(state)
        return plan(state, is_coordinator)

    def fresh(state: State) -> SavePlan:
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(state), is_coordinator=True)
        return planner.create_local_plan()

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        found = variants()
        for (first, one), (second, other) in itertools.product(found.items(), repeat=2):
            same = fresh({"entry": one}) == fresh({"entry": other})
            planner = SharePlanner()
            with monkeypatch.context() as patched:
                patched.setattr(default_planner, "create_default_local_save_plan", noted)
                for value in (one, other):
                    made.clear()
                    planner.set_up_planner({"entry": value}, is_coordinator=True)
                    told = planner.create_local_plan()
            assert is_as_before(told) == same, (first, second)
            if first == second and first != "of a class of its own":
                assert not made, first
    finally:
        dist.destroy_process_group()


def test_a_change_on_one_rank_is_planned_by_all() -> None:
    planners = ranks()
    planned(planners, [state()] * RANKS)
    more = {**state(), "only here": torch.ones(2)}
    sent, metadata = planned(planners, [state(), state(), more])
    assert [bool(plan.items) for plan in sent] == [False, False, True]
    assert "only here" in metadata.state_dict_metadata
    shares = [written(planner) for planner in planners]
    assert sorted(name for share in shares for name in share) == sorted(more)
    assert "only here" in shares[2]


def test_after_a_failure_all_is_planned_anew() -> None:
    planners = ranks()
    planned(planners, [state()] * RANKS)
    for planner in planners:
        planner.forget()
    sent, _ = planned(planners, [state()] * RANKS)
    assert all(plan.items for plan in sent)


def test_a_copy_that_was_interrupted_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elasticjob.checkpoint.share._copy", interrupted)
    planner = SharePlanner()
    planner.begin()
    planner.set_up_planner(state(), is_coordinator=True)
    plans, _ = planner.create_global_plan([planner.create_local_plan()])
    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(planner.finish_plan, plans[0])
        with pytest.raises(KeyboardInterrupt):
            planner.copy(finishing)
        with pytest.raises(CheckpointError, match="could not be copied"):
            planner.resolve_data(finishing.result().items[0])


def test_no_copy_is_kept_after_a_save(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state())
            checkpoints.wait()
            assert not checkpoints._planner._copies


def test_a_save_that_has_failed_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("the disk fails")

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state())
        checkpoints.wait()
        with monkeypatch.context() as patch:
            patch.setattr("elasticjob.checkpoint.shards._Files.create_stream", fails)
            checkpoints.save(2, state(3))
            with pytest.raises(CheckpointError, match="the disk fails"):
                checkpoints.wait()
        checkpoints.save(2, state(3))
    found = state(3) | {"step": 0}
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.resume(found) == 2
    assert found["step"] == 7


def test_each_pod_has_all_that_its_ranks_have_given_and_once() -> None:
    """Ranks 0 and 2 are in one pod, rank 1 in another. Each rank has a part of its own, too."""
    states = [state() | {f"part{rank}": torch.ones(rank + 1)} for rank in range(RANKS)]
    planners = ranks()
    for planner, one in zip(planners, states, strict=True):
        planner.set_up_planner(one, is_coordinator=planner is planners[0])
    sent = [planner.create_local_plan() for planner in planners]
    plans, metadata = planners[0].create_global_plan(sent, ["a", "b", "a"])
    given = [[item.index.fqn for item in plan.items] for plan in plans]
    assert sorted(given[0] + given[2]) == sorted({**states[0], **states[2]})
    assert sorted(given[1]) == sorted(states[1])
    assert min(len(given[0]), len(given[2])) > 5, "they share the work"
    assert set(metadata.state_dict_metadata) == set().union(*states)
