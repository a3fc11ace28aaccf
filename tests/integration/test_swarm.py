"""The benchmark's swarm against a real control plane and the real operator: coroutines form real rounds."""

from __future__ import annotations

import pytest

from benchmarks.k8s import ControlPlane, K8s
from benchmarks.meter import Meter
from benchmarks.plan import JOIN, REJOIN
from benchmarks.results import OK
from benchmarks.scale import one_round
from benchmarks.swarm import Swarm
from elasticjob.contract.round_record import INLINE_MEMBERS

pytestmark = pytest.mark.devcluster

LARGE = INLINE_MEMBERS + 8


@pytest.mark.parametrize("n", [16, LARGE])
def test_coroutines_join_and_rejoin(n: int) -> None:
    """Of the large round the leader reads the members, and tells the others their ranks."""
    with (
        ControlPlane() as plane,
        K8s(plane).session(n, n) as session,
        Swarm(session.swarm_seats(), processes=2) as swarm,
    ):
        meter = Meter(plane)
        for what in (JOIN, REJOIN):
            sample = one_round(what, n, session, swarm, meter)
            assert sample.outcome == OK, f"{sample.detail}\n{plane.operator_log()}"
            figures = sample.figures
            # A watch and a write each, the leader's report, and what a busy machine makes of it.
            assert n <= figures["requests"] <= 4 * n
            assert figures["bytes_sent"] > n * 1000
            assert figures["bytes_received"] > n * 1000
            assert 0 < figures["written_seconds"] <= figures["seen_seconds"] <= sample.figures["told_seconds"]
            assert figures["operator_requests"] > 0
            assert figures["watch_bytes"] > 0
