"""``GlobalBatches`` with real process groups: gradients of DDP and FSDP2, and rounds that are killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
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
            f"{wrapper}, {what}, {size}"
            for wrapper in WRAPPERS
            for what in (False, True, "tokens")
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


@dataclass(frozen=True)
class Part:
    """A round of a run: until a rank is killed in a step, or until all have ended well after one."""

    ranks: int
    step: int
    killed: int | None = None


TWO_KILLS = (Part(3, 6, killed=1), Part(2, 11, killed=0), Part(4, STEPS))


def schedule(seed: int) -> tuple[str, list[Part]]:
    """A wrapper, and two to six rounds. No round ends before the step in which the one before did: it would
    perhaps resume from a later one."""
    random = Random(seed)
    parts, step = list[Part](), 0
    for _ in range(random.randint(1, 5)):
        step, ranks = min(STEPS, step + random.randint(1, 6)), random.randint(1, 4)
        parts.append(Part(ranks, step, random.choice([None, *range(ranks)])))
    return random.choice((*WRAPPERS, IN_ORDER)), [*parts, Part(random.randint(1, 4), STEPS)]


def play(folder: Path, number: int, wrapper: str, part: Part) -> None:
    if part.killed is None:
        outcomes(folder, part.ranks, Round(str(folder), number, wrapper, part.step))
        return
    plan = Round(str(folder), number, wrapper, STEPS, (part.killed, part.step))
    with processes(folder, part.ranks, plan) as (started, _):
        started[part.killed].join(DEADLINE_SECONDS)
        assert started[part.killed].exitcode == -9


Steps = list[tuple[Counter[int], float]]


def trained(tmp_path: Path, wrapper: str, parts: Sequence[Part]) -> tuple[Steps, Steps, list[int]]:
    """Samples and loss of each step, of a run of these rounds, and of one rank that nothing disturbs; and
    with which steps the rounds have begun."""
    alone, folder = tmp_path / "alone", tmp_path / "job"
    for each in (alone, folder):
        each.mkdir()
    play(alone, 1, wrapper, Part(1, STEPS))
    counts, began = dict[int, tuple[Counter[int], float]](), list[int]()
    for number, part in enumerate(parts, 1):
        play(folder, number, wrapper, part)
        if found := steps_of(folder, number):  # none: the only rank was killed in the first step
            began.append(min(found))
            counts = {step: counts[step] for step in range(1, began[-1])} | found
    assert sorted(counts) == list(range(1, STEPS + 1))
    return [counts[step] for step in sorted(counts)], list(steps_of(alone, 1).values()), began


def check(wrapper: str, disturbed: Steps, undisturbed: Steps) -> None:
    """The same samples and losses; with additions in order, the same bits."""
    assert [samples for samples, _ in disturbed] == [samples for samples, _ in undisturbed]
    losses = [loss for _, loss in undisturbed]
    if wrapper == IN_ORDER:
        assert [loss for _, loss in disturbed] == losses
        return
    assert [loss for _, loss in disturbed] == pytest.approx(losses, rel=0, abs=1e-9)
    for first in range(0, STEPS, 3):
        epoch: Counter[int] = sum((samples for samples, _ in disturbed[first : first + 3]), Counter())
        assert epoch == Counter(range(SAMPLES))


@pytest.mark.parametrize("wrapper", [*WRAPPERS, IN_ORDER])
def test_two_kills_and_other_numbers_of_ranks_change_no_sample_and_no_loss(
    tmp_path: Path, wrapper: str
) -> None:
    disturbed, undisturbed, began = trained(tmp_path, wrapper, TWO_KILLS)
    check(wrapper, disturbed, undisturbed)
    assert 7 <= began[-1] <= 11


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_kills_and_changes_of_size_at_random_change_no_sample_and_no_loss(tmp_path: Path, seed: int) -> None:
    wrapper, parts = schedule(seed)
    disturbed, undisturbed, _ = trained(tmp_path, wrapper, parts)
    check(wrapper, disturbed, undisturbed)
