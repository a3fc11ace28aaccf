"""What metrics count of the decisions of each scenario is what its last status says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator.metrics import families as f
from elasticjob_operator.metrics.decisions import counted
from elasticjob_operator.metrics.families import Kind, Metric
from elasticjob_operator.plan.state.status import JobStatus
from tests.scenarios.test_scenarios import FILES
from tests.scenarios.world import World

CHARGE_IS_TAKEN_BACK = {"charge_that_moves_meets_a_rule"}
"""A counter can't be: it stays one ahead."""


HISTORY_BEGINS_ANEW = {"pods_of_a_former_job_are_left_behind", "job_created_again_under_the_same_name"}


class CountingWorld(World):
    """Counts each status that is written."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.measured: Counter[tuple[Metric, float]] = Counter()
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "status" and "status" in vars(self):
            for sample in counted(self.status, value):
                assert sample.value >= 0
                assert len(sample.labels) == len(sample.metric.labels)
                whole = sample.value if sample.metric.kind is Kind.COUNTER else 1
                self.totals[sample.metric.name] += round(whole * 1000)
                if sample.metric.kind is Kind.HISTOGRAM:
                    self.measured[sample.metric, sample.value] += 1
        super().__setattr__(name, value)

    def total(self, metric: Metric) -> float:
        """In the unit of the metric."""
        return self.totals[metric.name] / 1000


def _of(status: JobStatus) -> dict[Metric, float]:
    progress = status.progress
    milliseconds = progress.trained_milliseconds + progress.training_milliseconds if progress else 0
    lost = sum(entry.milliseconds for entry in progress.lost_by_cause) if progress else 0
    return {
        f.CHARGES: status.restarts,
        f.FINISHED: status.finished,
        f.LOST: lost / 1000,
        f.TRAINING: milliseconds / 1000,
        f.RESUMES: sum(entry.resumed is not None for entry in status.round_history),
        f.REDONE: sum(
            entry.resumed.redone_steps or 0 for entry in status.round_history if entry.resumed is not None
        ),
    }


def _measured(status: JobStatus) -> Counter[tuple[Metric, float]]:
    """What the rounds that the status knows have measured."""
    found: Counter[tuple[Metric, float]] = Counter()
    numbers = {entry.number for entry in status.round_history}
    for entry in status.round_history:
        detection = entry.end.detect_milliseconds if entry.end and entry.number + 1 in numbers else None
        for metric, milliseconds in (
            (f.DETECTION, detection),
            (f.RENDEZVOUS, entry.rendezvous_milliseconds),
            (f.FIRST_STEP, entry.first_step_milliseconds),
        ):
            if milliseconds is not None:
                found[metric, milliseconds / 1000] += 1
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_counters_are_those_of_the_status(path: Path) -> None:
    world = CountingWorld()
    first, *rest = [line[2:] for line in path.read_text().splitlines() if line.startswith("> ")]
    world.play(first)
    world.totals.clear()
    world.measured.clear()
    known = _measured(world.status)
    before, events = _of(world.status), len(world.events)
    world.play(*rest)
    after = _of(world.status)
    expected = {metric.name: round(value - before[metric], 3) for metric, value in after.items()}
    found = {metric.name: world.total(metric) for metric in after}
    found[f.TRAINING.name] = round(found[f.TRAINING.name] - world.total(f.REPEATED), 3)
    if path.stem in CHARGE_IS_TAKEN_BACK:
        found[f.CHARGES.name] -= 1
    assert found == expected
    published = sum(event.reason == "RoundPublished" for event in world.events[events:])
    assert world.total(f.ROUNDS) == published
    if path.stem in HISTORY_BEGINS_ANEW:
        known.clear()
    assert world.measured == _measured(world.status) - known
