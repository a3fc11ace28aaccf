"""``GlobalBatches`` with real process groups: gradients of DDP and FSDP2, and rounds that are killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import data_ranks
from tests.e2e.checkpoint_rounds import DEADLINE_SECONDS, context
from tests.e2e.data_ranks import BATCH, IN_ORDER, SAMPLES, WRAPPERS, Round

STEPS = 15
"""Five epochs."""


@contextmanager
def processes(folder: Path, ranks: int, plan: Round | None) -> Iterator[tuple[list[Any], Any]]:
    """The processes of all ranks, and the queue of their outcomes. They may start workers of loaders."""
    results = context.Queue()
    meeting = str(folder / f"meeting-{plan.number if plan else 0}")
    started = [
        context.Process(target=data_ranks.run, args=(rank, ranks, meeting, plan, results))
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    try:
        yield started, results
    finally:
        for process in started:
            process.kill()
            process.join()


def outcomes(folder: Path, ranks: int, plan: Round | None) -> list[dict[str, Any]]:
    """Of a round in which all goes well."""
    with processes(folder, ranks, plan) as (started, results):
        found = dict(results.get(timeout=DEADLINE_SECONDS) for _ in started)
    assert [outcome["error"] for outcome in found.values()] == [""] * ranks
    return [found[rank] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gradient_and_loss_are_those_of_the_global_batch(tmp_path: Path, ranks: int) -> None:
    for outcome in outcomes(tmp_path, ranks, None):
        assert set(outcome["differences"]) == {
            f"{wrapper}, {accumulate}, {size}"
            for wrapper in WRAPPERS
            for accumulate in (False, True)
            for size in (BATCH, SAMPLES % BATCH)
        }
        assert max(outcome["differences"].values()) < 1e-12, outcome["differences"]


def steps_of(folder: Path, number: int) -> dict[int, tuple[Counter[int], float]]:
    """The samples and the loss of each step of a round, of all ranks together."""
    found: dict[int, tuple[Counter[int], float]] = {}
    for log in folder.glob(f"round-{number}-rank-*"):
        for step, samples, loss in map(json.loads, log.read_text().splitlines()):
            together, total = found.get(step, (Counter(), 0.0))
            found[step] = together + Counter(samples), total + loss
    return found


def trained(tmp_path: Path, wrapper: str) -> tuple[list[Any], list[Any]]:
    """Samples and loss of each step, of a run with two kills and other numbers of ranks, and of one rank."""
    alone, folder = tmp_path / "alone", tmp_path / "job"
    for each in (alone, folder):
        each.mkdir()
    outcomes(alone, 1, Round(str(alone), 1, wrapper, STEPS))

    for number, ranks, kill in ((1, 3, (1, 6)), (2, 2, (0, 11))):
        plan = Round(str(folder), number, wrapper, STEPS, kill)
        with processes(folder, ranks, plan) as (started, _):
            started[kill[0]].join(DEADLINE_SECONDS)
            assert started[kill[0]].exitcode == -9
    (resumed,) = {
        outcome["resumed"] for outcome in outcomes(folder, 4, Round(str(folder), 3, wrapper, STEPS))
    }
    assert 6 <= resumed <= 10

    counts: dict[int, tuple[Counter[int], float]] = {}
    for number in (1, 2, 3):
        found = steps_of(folder, number)
        counts = {step: counts[step] for step in range(1, min(found))} | found
    return list(counts.values()), list(steps_of(alone, 1).values())


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_two_kills_and_other_numbers_of_ranks_change_no_sample_and_no_loss(
    tmp_path: Path, wrapper: str
) -> None:
    disturbed, undisturbed = trained(tmp_path, wrapper)
    assert [samples for samples, _ in disturbed] == [samples for samples, _ in undisturbed]
    losses = [loss for _, loss in disturbed]
    assert losses == pytest.approx([loss for _, loss in undisturbed], rel=0, abs=1e-9)
    for first in range(0, STEPS, 3):
        epoch: Counter[int] = sum((samples for samples, _ in disturbed[first : first + 3]), Counter())
        assert epoch == Counter(range(SAMPLES))


def test_gradients_that_are_added_in_order_give_the_same_bits(tmp_path: Path) -> None:
    disturbed, undisturbed = trained(tmp_path, IN_ORDER)
    assert len(disturbed) == STEPS
    assert disturbed == undisturbed
