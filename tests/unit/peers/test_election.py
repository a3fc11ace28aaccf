"""When a participant takes over as coordinator: one row for each reason, and for each reason not to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from elasticjob.peers.election import (
    NEVER,
    ORDER_SECONDS,
    PROBE_AFTER_SECONDS,
    Standing,
    next_claim,
    next_probe,
    probe_pause,
)
from elasticjob.peers.settled import FORMING_RENEW, RUNNING_RENEW

FOLLOWS = Standing(changed=100.0, held=True)
WAITS = replace(FOLLOWS, waits=90.0, active=True, member=True)


@pytest.mark.parametrize(
    ("standing", "at", "why"),
    [
        (FOLLOWS, NEVER, ""),
        (replace(FOLLOWS, active=True, member=True), NEVER, ""),
        (replace(FOLLOWS, held=False), 100.0, "it has left"),
        (replace(FOLLOWS, held=False, over=True), NEVER, ""),
        (replace(WAITS, over=True, ended=True, accused=90.0), NEVER, ""),
        (replace(FOLLOWS, mine=True), 100.0, "earlier pod"),
        (replace(FOLLOWS, ended=True), 100.0, "pod has ended"),
        (replace(FOLLOWS, accused=101.0), 101.0, "cannot reach it"),
        (replace(FOLLOWS, accused=99.0), NEVER, ""),  # else two that can't reach each other claim for ever
        (WAITS, 106.0, "does not answer"),
        (replace(WAITS, waits=103.0), 109.0, "does not answer"),
        (replace(WAITS, member=False), 115.0, "does not answer"),
        (replace(WAITS, active=False, member=False), 106.0, "does not answer"),
        (replace(WAITS, refuses=True), 100.0 + PROBE_AFTER_SECONDS, "port refuses"),
        (replace(FOLLOWS, refuses=True), NEVER, ""),
    ],
)
def test_when_and_why(standing: Standing, at: float, why: str) -> None:
    claim = next_claim(standing)
    assert claim.at == at
    assert why in claim.why


def test_those_who_claim_for_one_reason_do_it_one_after_the_other() -> None:
    for standing in (
        replace(FOLLOWS, held=False),
        WAITS,
        replace(FOLLOWS, accused=100.1),
        replace(WAITS, refuses=True),
    ):
        times = [next_claim(replace(standing, place=place)).at for place in range(4)]
        assert [round(b - a, 6) for a, b in pairwise(times)] == [ORDER_SECONDS] * 3


def test_all_who_wait_hear_of_a_coordinator_or_become_it_within_twelve_seconds() -> None:
    """P5, for the last of a large run."""
    assert next_claim(replace(WAITS, waits=100.0, place=1000)).at <= 112.0


def test_the_port_of_a_coordinator_that_does_not_answer_is_tried() -> None:
    assert next_probe(replace(WAITS, waits=100.0)) == 101.0
    assert next_probe(replace(WAITS, waits=103.0)) == 104.0
    assert next_probe(FOLLOWS) == NEVER
    assert next_probe(replace(WAITS, held=False)) == NEVER
    assert next_probe(replace(WAITS, refuses=True)) == NEVER


def test_a_coordinator_that_answers_is_not_tried_and_a_few_try_one_that_does_not() -> None:
    """Each try is a request and a connection: 127 that wait would send as many each second."""
    assert next_probe(WAITS) > WAITS.changed + FORMING_RENEW
    assert next_probe(replace(WAITS, member=False)) > WAITS.changed + RUNNING_RENEW
    tries = [next_probe(replace(WAITS, waits=100.0, place=place)) for place in range(100)]
    assert sum(at < NEVER for at in tries) == 3
    assert [probe_pause(n) for n in range(4)] == [1.0, 2.0, 4.0, 8.0]
