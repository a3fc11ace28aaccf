"""Pauses between tries, of the handler and of the operator."""

from __future__ import annotations

from elasticjob.core.pauses import exponential


def test_pauses_double_up_to_the_longest() -> None:
    assert [exponential(0.2, 2.0, failures) for failures in range(1, 7)] == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert exponential(0.2, 10.0, 100_000) == 10.0
