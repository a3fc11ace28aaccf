"""How long a participant waits for a round at most."""

from __future__ import annotations

from elasticjob.core.join_time import JoinTime


def test_without_a_round_the_limit_holds() -> None:
    time = JoinTime(10.0, 100.0)
    assert [time.is_over(at, stands_by=False) for at in (100.0, 110.0, 110.1)] == [False, False, True]


def test_a_round_of_others_does_not_count() -> None:
    time = JoinTime(10.0, 100.0)
    assert not time.is_over(104.0, stands_by=False)
    assert not any(time.is_over(at, stands_by=True) for at in (105.0, 500.0, 9005.0))
    assert not time.is_over(9009.0, stands_by=False), "the first seconds count, and those since 9005 in part"
    assert not time.is_over(9014.0, stands_by=False)
    assert time.is_over(9014.2, stands_by=False)


def test_without_a_limit_the_wait_does_not_end() -> None:
    assert not JoinTime(float("inf"), 0.0).is_over(1e9, stands_by=False)
