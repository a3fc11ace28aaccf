"""Each rank copies and writes its share of a state, and a plan is made once for saves that are alike."""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from elasticjob.checkpoint import CheckpointError, Checkpoints
from elasticjob.checkpoint.share import SharePlanner

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
