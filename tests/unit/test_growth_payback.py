"""What growth costs, and when it pays."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.changes.draining import HowStopped
from elasticjob_operator.plan.changes.growth_payback import Cost, cost, payback_seconds
from elasticjob_operator.plan.state.status import RoundEnd, RoundHistory

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def formed(
    number: int, cause: str, meet: float | None, start: float | None, first: int, last: int
) -> RoundHistory:
    """A round that met and made its first step after so many seconds, and came from one step to another."""
    began = None if meet is None or start is None else round((meet + start) * 1000)
    met = None if meet is None else round(meet * 1000)
    return RoundHistory(number, cause, 4, BEGAN, None, met, began, first, last)


def test_nothing_is_known_before_a_round_has_made_a_step() -> None:
    assert cost([], 1.0, drains=False) is None
    assert cost([formed(1, "Started", 2, None, 0, 0)], 1.0, drains=False) is None


def test_the_first_round_tells_how_long_the_script_takes_to_start() -> None:
    assert cost([formed(1, "Started", 90, 14, 0, 500)], 1.0, drains=False) == Cost(0.0, 14.0, 0.0)


def test_rounds_after_failures_have_waited_for_pods_and_planned_ones_have_not() -> None:
    history = [
        formed(3, Cause.POD_LOST, 60, 10, 900, 1500),
        formed(2, Cause.SCALED_UP, 2, 12, 400, 1000),
        formed(1, "Started", 90, 14, 0, 500),
    ]
    found = cost(history, 0.1, drains=False)
    assert found == Cost(2.0, 12.0, 10.0), "of 101 steps at 0.1 s each, before both"
    assert found.seconds == 24.0
    assert cost(history, 0.1, drains=True) == Cost(2.0, 12.0, 0.0)


def test_rounds_that_drained_repeated_nothing_and_say_nothing_of_those_that_do_not() -> None:
    end = RoundEnd(BEGAN, Cause.SCALED_UP, drain=HowStopped.STOPPED.value)
    history = [
        formed(3, Cause.POD_LOST, 1, 10, 951, 1500),
        formed(2, Cause.SCALED_UP, 1, 10, 501, 1000),
        replace(formed(1, "Started", 1, 10, 0, 500), end=end),
    ]
    found = cost(history, 1.0, drains=False)
    assert found is not None
    assert found.redone == 50.0


@pytest.mark.parametrize(
    ("have", "to", "seconds"), [(8, 9, 160.0), (8, 12, 40.0), (1, 2, 20.0), (2, 8, 20 / 3)]
)
def test_how_long_it_takes_to_make_up_for_it(have: int, to: int, seconds: float) -> None:
    assert payback_seconds(Cost(1.0, 14.0, 5.0), have, to) == pytest.approx(seconds)
