"""The benchmark's swarm against a real control plane and the real operator: coroutines form real rounds."""

from __future__ import annotations

import pytest

from benchmarks.k8s import ControlPlane, K8s
from benchmarks.meter import Meter
from benchmarks.plan import JOIN, REJOIN
from benchmarks.results import OK
from benchmarks.scale import one_round
from benchmarks.swarm import Swarm

pytestmark = pytest.mark.devcluster

N = 16


def test_sixteen_coroutines_join_and_rejoin() -> None:
    with (
        ControlPlane() as plane,
        K8s(plane).session(N, N) as session,
        Swarm(session.swarm_seats(), processes=2) as swarm,
    ):
        meter = Meter(plane)
        for what in (JOIN, REJOIN):
            sample = one_round(what, N, session, swarm, meter)
            assert sample.outcome == OK, f"{sample.detail}\n{plane.operator_log()}"
            figures = sample.figures
            # A watch and a write each, the leader's report, and what a busy machine makes of it.
            assert N <= figures["requests"] <= 4 * N
            assert figures["bytes_sent"] > N * 1000
            assert figures["bytes_received"] > N * 1000
            assert 0 < figures["written_seconds"] <= figures["seen_seconds"] <= sample.figures["told_seconds"]
            assert figures["operator_requests"] > 0
            assert figures["watch_bytes"] > 0
