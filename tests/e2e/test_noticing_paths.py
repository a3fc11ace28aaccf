"""Paths are cut, one way and both ways, and the heartbeats alone tell (docs/internals/detection.md).

The pods have network namespaces of their own; their workers need no other rank. Nothing is closed or refused:
packets are lost.
"""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from devcluster.nodeagent.client import Direction, NodeAgentError
from tests.e2e.job import JobRun
from tests.e2e.test_noticing import given_up, lone_steps, replaced, undisturbed

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.devcluster,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

NETNS = {"devcluster/network": "netns"}
SHORT_SECONDS = 4.0
LIMITS = {"heartbeatTimeoutSeconds": 6, "establishTimeoutSeconds": 5}


@pytest.mark.slow
# shows: an agent, node or network is away for less than its time limit
# shows: a pod's network loses packets, one way or both ways
def test_a_pod_is_cut_off(job: JobRun) -> None:
    """From all peers, and from the API server; whichever way packets are lost. Short of the limit: nothing.

    A leader that both others miss is given up; a member that is missed is replaced. One that is deaf only can
    still accuse the leader, so there has to be a third.
    """
    cases: dict[str, tuple[int, int, Direction]] = {
        "in": (3, 1, "in"),
        "out": (2, 1, "out"),
        "both": (2, 1, "both"),
        "leader": (3, 0, "both"),
    }
    jobs = {name: job.beside(name) for name in cases}
    for name, one in jobs.items():
        one.apply(lone_steps(one), NETNS, replicas=cases[name][0], rendezvous=LIMITS)
    victims = {}
    for name, one in jobs.items():
        one.training(1)
        victims[name] = one.member(cases[name][1])

    def cut() -> None:
        for name, (_, _, direction) in cases.items():
            job.cluster.nodes.cut_pod(job.namespace, victims[name]["podName"], direction)

    def restore() -> None:
        for victim in victims.values():
            with contextlib.suppress(NodeAgentError):  # where signals reach it, it may have ended
                job.cluster.nodes.restore_pod(job.namespace, victim["podName"])

    cut()
    time.sleep(SHORT_SECONDS)
    restore()
    for one in jobs.values():
        undisturbed(one, 1, restarts=0)

    cut()
    for one in jobs.values():
        one.training(2)
    restore()
    for name, one in jobs.items():
        given_up(one, victims[name], "its port does not answer")
        replaced(one, victims[name])
        undisturbed(one, 2, restarts=1)
        one.stop()
    for one in jobs.values():
        one.complete()


@pytest.mark.slow
# shows: only the connection between the leader and one member is cut
# shows: the connections between the leader and all others are cut
def test_a_path_to_the_leader_is_cut(job: JobRun) -> None:
    """All pods reach the API server, but one or both of two members don't reach the leader.

    One: the leader stays, the member is replaced once two establishments have missed it. Both: the leader
    does not lead again.
    """
    jobs = {name: job.beside(name) for name in ("one", "both")}
    for one in jobs.values():
        one.apply(lone_steps(one), NETNS, replicas=3, rendezvous=LIMITS)
    first = {name: one.training(1) for name, one in jobs.items()}
    cuts = []
    for name, one in jobs.items():
        leader = first[name]["leaderPodName"]
        for rank in (1, 2) if name == "both" else (1,):
            cuts.append((one.member(rank)["podName"], leader))
    for member, leader in cuts:  # one way: no connection outlives the loss of its answers
        job.cluster.nodes.cut_path(job.namespace, leader, member)
    accused = cuts[0][0]
    one, both = jobs["one"], jobs["both"]

    def trains_without(run: JobRun, pod: str) -> bool:
        now = run.status()
        return (
            now["currentRound"]["phase"] == "Active"
            and "establishedTime" in now["currentRound"]
            and pod not in {p["podName"] for p in now["participants"]}
        )

    one.wait_for(lambda: trains_without(one, accused), "the member that nobody hears is replaced")
    assert one.round()["leaderPodName"] == first["one"]["leaderPodName"], (
        "the leader that others reach goes on leading"
    )
    both.wait_for(
        lambda: (
            both.round()["number"] > 1
            and both.round()["leaderPodName"] != first["both"]["leaderPodName"]
            and "establishedTime" in both.round()
        ),
        "a leader that is reached leads",
    )
    for name, run in jobs.items():
        number = run.training(2, members=3)["number"]
        undisturbed(run, number, run.status()["restarts"])
        assert {r["account"] for r in run.rounds()[1:]} == {"infrastructure"}
        assert run.status()["restarts"] <= 2, f"{name}: the loss, and the series of rounds that it cost"
        run.stop()
    for run in jobs.values():
        run.complete()
