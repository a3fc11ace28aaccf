"""A silent member is noticed by its heartbeats alone (docs/internals/detection.md): no collective need fail.

The workers of these jobs need no other rank, so they go on beside whatever happens to an agent. Each fault
comes twice: for less than its limit, when nothing may happen, and for more.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from devcluster.nodeagent.client import NodeAgentError
from tests.e2e.job import SCRIPTS, JobRun, apart

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

STALL_SECONDS = 7
SHORT_SECONDS = 4.5
"""Longer than two heartbeats and than `heartbeatTimeoutSeconds`, shorter than a stall."""
LIMITS = {"heartbeatTimeoutSeconds": 3}


def lone_steps(job: JobRun, *arguments: str) -> list[str]:
    """torchrun with workers that need no other rank."""
    script = str(SCRIPTS / "lone_steps.py")
    return ["torchrun", f"--rdzv-conf=stall_timeout={STALL_SECONDS}", script, str(job.folder), *arguments]


def undisturbed(job: JobRun, number: int, restarts: int) -> None:
    """The round goes on, and no other was formed."""
    job.goes_on(number)
    assert job.round()["number"] == number, job.round()
    assert job.status()["restarts"] == restarts


def given_up(job: JobRun, victim: dict[str, Any], said: str) -> None:
    """The second round has left the victim out, for this reason."""
    second = job.rounds()[1]
    assert second["account"] == "infrastructure"
    assert second["cause"] == ("Unreachable" if victim["groupRank"] else "LeaderUnreachable")
    assert said in second["message"]
    assert victim["id"] not in {p["id"] for p in job.status()["participants"]}


def replaced(job: JobRun, victim: dict[str, Any]) -> None:
    """Its pod is gone, and its workers were in no other round."""
    job.gone(victim["podName"])
    assert {s["round"] for s in job.steps() if s["pod"] == victim["podName"]} == {1}


@pytest.mark.slow
# shows: an agent or a whole pod is frozen (SIGSTOP), and its port accepts connections
# shows: an agent, node or network is away for less than its time limit
def test_an_agent_stalls(job: JobRun) -> None:
    """SIGSTOP: the kernel goes on accepting connections to the agent's port, so the stall timeout counts.

    I4: the woken one joins under no former identity, and its workers are in no other round.
    """
    stop_one: Callable[[JobRun, str, int], None] = JobRun.signal_agent
    cases = {
        "agent": (1, stop_one),
        "whole-pod": (1, JobRun.signal_all),
        "leader": (0, stop_one),
        "woken-soon": (1, stop_one),
    }
    jobs = {name: job.beside(name) for name in cases}
    for name, one in jobs.items():
        one.apply(lone_steps(one), replicas=3 if name == "leader" else 2, rendezvous=LIMITS)
    victims = {}
    for name, one in jobs.items():
        one.training(1)
        victims[name] = one.member(cases[name][0])

    def signal_victims(number: int) -> None:
        for name, (_, send) in cases.items():
            with contextlib.suppress(NodeAgentError):  # its time to end well may be over
                send(jobs[name], victims[name]["podName"], number)

    signal_victims(signal.SIGSTOP)
    time.sleep(SHORT_SECONDS)
    signal_victims(signal.SIGCONT)
    for one in jobs.values():
        undisturbed(one, 1, restarts=0)

    signal_victims(signal.SIGSTOP)
    soon = jobs["woken-soon"]
    soon.wait_for(lambda: soon.round()["number"] > 1 or soon.round()["phase"] == "Broken", "it is given up")
    soon.signal_agent(victims["woken-soon"]["podName"], signal.SIGCONT)
    for one in jobs.values():
        one.training(2)
    signal_victims(signal.SIGCONT)
    for name, one in jobs.items():
        given_up(one, victims[name], "it accepts connections but sends no heartbeat")
        if name != "woken-soon":
            replaced(one, victims[name])
        undisturbed(one, 2, restarts=1)
        one.stop()
    for one in jobs.values():
        one.complete()


@pytest.mark.slow
# shows: an agent dies, and its port with it
# shows: a node freezes
# shows: an agent, node or network is away for less than its time limit
def test_a_node_freezes_and_one_dies(job: JobRun) -> None:
    """Frozen for less than the limit, dead without a word (its ports refuse), frozen for longer."""
    job.apply(lone_steps(job), pod=apart(job), rendezvous=LIMITS)
    job.training(1)
    nodes, victim = job.cluster.nodes, job.member(1)["podName"]
    node = job.pods()[victim]["spec"]["nodeName"]
    nodes.freeze_node(node)
    try:
        time.sleep(SHORT_SECONDS)
    finally:
        nodes.thaw_node(node)
    undisturbed(job, 1, restarts=0)

    nodes.kill_node(node)
    try:
        job.training(2)
        assert any("the connection to its port is refused" in said for said in job.told("RoundBroken"))
        assert job.rounds()[1]["account"] == "infrastructure"
    finally:
        nodes.start_node(node)
    job.gone(victim)

    leader = job.member(0)
    node = job.pods()[leader["podName"]]["spec"]["nodeName"]
    nodes.freeze_node(node)
    try:
        job.training(3)
        assert job.rounds()[2]["account"] == "infrastructure"
    finally:
        nodes.thaw_node(node)
    job.gone(leader["podName"])
    assert {s["round"] for s in job.steps() if s["pod"] == leader["podName"]} == {1, 2}
    undisturbed(job, 3, restarts=2)
    job.stop()
    job.complete()
