"""The judge of a round's progress: what it reports, when it calls a hang, and above all when not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.contract.reports import ProgressReport, RoundReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Enter, Participant
from elasticjob.core.progress import ProgressMonitor, Steps

NONE: Mapping[int, int] = {}
"""A round of one."""


def monitor(timeout: float = 10.0) -> ProgressMonitor:
    return ProgressMonitor("n", 100.0, Limits(hang_timeout=timeout))


def until(
    j: ProgressMonitor, now: int, end: int, own: Steps | None = None, others: Mapping[int, int] | None = NONE
) -> list[RoundReport]:
    """One tick a second, with nothing new; the hangs that were called."""
    return [hang for t in range(now, end) if (hang := j.tick(float(t), own, others)) is not None]


def test_nothing_is_reported_before_the_first_step() -> None:
    j = monitor()
    assert until(j, 101, 100_000) == [], "and a job that reports no step is never judged"
    assert j.report is None


def test_the_moments_are_those_at_which_the_worker_reported() -> None:
    j = monitor()
    j.tick(101.0, None, {})
    j.tick(102.0, Steps(20, 101.25, 23, 101.9), {})
    assert j.report == ProgressReport("n", 20, 23, 1250, 650)
    j.tick(103.0, Steps(20, 101.25, 30, 102.75), {})
    assert j.report == ProgressReport("n", 20, 30, 1250, 1500)


def test_a_step_of_another_agent_counts_from_when_it_has_come_in() -> None:
    j = monitor()
    j.tick(105.0, None, {1: 40})
    assert j.report == ProgressReport("n", 40, 40, 5000, 0)
    j.tick(106.0, None, {1: 42})
    assert j.report == ProgressReport("n", 40, 42, 5000, 1000)


def test_the_highest_of_all_counts() -> None:
    j = monitor()
    j.tick(101.0, Steps(1, 100.5, 3, 100.9), {1: 7})
    assert j.report == ProgressReport("n", 1, 7, 500, 500)
    j.tick(102.0, Steps(1, 100.5, 5, 101.9), {1: 7})
    assert j.report == ProgressReport("n", 1, 7, 500, 500), "one that lags behind is no growth"


def test_times_that_can_not_be_are_put_right() -> None:
    """Between 'the barrier' and 'now', whatever stands in the file."""
    j = monitor()
    j.tick(101.0, Steps(1, 3.0, 2, 9e9), {})
    assert j.report == ProgressReport("n", 1, 2, 0, 1000)


def test_a_hang_is_called_once_when_the_time_is_over() -> None:
    j = monitor(10)
    last = Steps(1, 100.5, 5, 101.0)
    assert until(j, 101, 111, last) == []
    assert until(j, 111, 200, last) == [
        RoundReport("n", hung=True, silent_milliseconds=10_000, message="no step after step 5 for 10 s")
    ]


def test_growth_starts_the_time_again() -> None:
    j = monitor(10)
    hangs = [j.tick(100.0 + t, Steps(1, 101.0, 1 + t // 9, 101.0 + t // 9 * 9), {}) for t in range(1, 90)]
    assert not any(hangs)


@pytest.mark.parametrize(("timeout", "expected"), [(0.0, 0), (10.0, 1)])
def test_no_timeout_no_judgement(timeout: float, expected: int) -> None:
    assert len(until(monitor(timeout), 101, 500, Steps(1, 100.5, 1, 100.5))) == expected


def test_the_slowest_rank_is_not_accused() -> None:
    """The leader's own workers report nothing new (they evaluate), those of another member do."""
    j = monitor(5)
    own = Steps(1, 100.5, 2, 100.9)
    assert [hang for t in range(101, 160) if (hang := j.tick(float(t), own, {1: t})) is not None] == []


def test_a_judge_that_was_stalled_itself_starts_again() -> None:
    """I9: its machine was frozen for an hour, and the workers with it."""
    j = monitor(10)
    own = Steps(1, 100.5, 2, 101.0)
    j.tick(102.0, own, {})
    assert j.tick(3702.0, own, {}) is None
    assert until(j, 3703, 3712, own) == []
    assert len(until(j, 3712, 3720, own)) == 1


def test_nothing_is_judged_while_the_others_are_not_known() -> None:
    j = monitor(10)
    j.tick(101.0, Steps(1, 100.5, 2, 100.9), {1: 3})
    assert until(j, 102, 200, others=None) == []
    assert j.tick(200.0, None, {1: 4}) is None, "it had grown in the meantime"


def test_a_fold_that_begins_again_at_0_is_no_hang() -> None:
    """Its step is none of the round's: the highest counts. But it shows that training gets on."""
    j = monitor(5)
    for t in range(101, 160):
        assert j.tick(float(t), Steps(0, 100.5, t % 7, float(t), t - 0.5), {}) is None
    assert j.report is not None
    assert j.report.step == 6
    assert len(until(j, 160, 170, Steps(0, 100.5, 2, 159.0, 159.0))) == 1, "until it stands still"


def test_a_lower_step_of_another_agent_is_a_sign_of_life() -> None:
    j = monitor(5)
    hangs = [j.tick(100.0 + t, None, {1: 50 if t < 10 else 3, 2: t // 3}) for t in range(1, 60)]
    assert not any(hangs)
    assert j.report is not None
    assert j.report.step == 50


def test_looking_between_ticks_judges_nothing_and_hides_nothing() -> None:
    j = monitor(10)
    j.tick(101.0, Steps(1, 100.5, 2, 100.9), {})
    j.update(150.0, Steps(1, 100.5, 9, 101.0), {})
    report = j.report
    assert report is not None
    assert report.step == 9
    assert len(until(j, 102, 120)) == 1


@pytest.mark.parametrize(
    ("phase", "cause", "number", "hung"),
    [
        ("Broken", "Hang", 3, True),
        ("Closed", "Hang", 3, True),
        ("Broken", "PodLost", 3, False),
        ("Active", "Hang", 3, False),
        ("Active", "Hang", 4, False),
    ],
)
def test_a_participant_knows_that_its_round_hung(phase: str, cause: str, number: int, hung: bool) -> None:
    participant = Participant()
    participant.observe(RoundRecord("uid", 2, "Broken"))
    participant.announce("a", "127.0.0.1:1", False, None)
    one = RoundRecord(
        "uid", 3, "Active", "n", ("a",), "127.0.0.1:1", size=1, leader_id="a", limits=Limits(hang_timeout=60)
    )
    participant.observe(one)
    step = participant.take_action()
    assert isinstance(step, Enter)
    assert step.membership.limits.hang_timeout == 60
    assert not participant.round_hung()
    participant.observe(replace(one, number=number, phase=phase, cause=cause))
    assert participant.round_hung() == hung
