"""Each root failure is charged once, to its own account: any two kinds of failure of the same rank in a row.

Whatever is learnt of the second while the charge of the first may still move is no evidence on the first.
"""

from __future__ import annotations

import itertools

import pytest

from elasticjob_operator.plan.state.evidence import APPLICATION, INFRASTRUCTURE, PREEMPTION
from tests.simulation.life import (
    Act,
    finish,
    hang,
    is_preempted,
    live,
    pod_is_lost,
    told,
    worker_fails,
)

SEEDS = 3
FAILURES: dict[str, tuple[Act, str]] = {
    "WorkerFailed": (worker_fails(1, 1), APPLICATION),
    "PodLost": (pod_is_lost(1), INFRASTRUCTURE),
    "OutOfMemory": (pod_is_lost(1, "OOMKilled"), APPLICATION),
    "Preempted": (is_preempted(1), PREEMPTION),
    "Hang": (hang, APPLICATION),
}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(FAILURES, FAILURES)))
def test_two_failures_are_charged_once_each(first: str, second: str) -> None:
    acts = (FAILURES[first][0], FAILURES[second][0], finish)
    expected = [
        (number, cause, FAILURES[cause][1] if number > 1 else "", 3)
        for number, cause in ((1, "Started"), (2, first), (3, second))
    ]
    for seed in range(SEEDS):
        world = live(seed, acts=acts)
        said = told(world.status)
        assert said["rounds"] == expected, world.kernel.readable()
        charges = {(n, cause) for entries in said["accounts"].values() for n, cause in entries}
        assert charges == {(1, first), (2, second)}, world.kernel.readable()
        assert said["restarts"] == 2
