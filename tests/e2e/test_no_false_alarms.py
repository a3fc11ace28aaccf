"""What only looks like a loss breaks no round, and in good times the API server hears little."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.refusals import refusing
from devcluster.wait import wait_for
from tests import operator_account
from tests.e2e.job import JobRun, Operator
from tests.e2e.test_api_server import audited
from tests.e2e.test_noticing import LIMITS, lone_steps, undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

WINDOW_SECONDS = 66.0
"""Longer than a member's slowest renewal."""
BUSY_LOOPS = 2
OURS = ("elasticjob-handler", "elasticjob-operator")


@dataclass(frozen=True)
class Identified:
    """An operator with a service account of its own, so that its requests can be told from others'."""

    operator: Operator
    user: str


@pytest.fixture
def identified(
    operator: Operator, installed: Cluster, namespace: str, tmp_path: Path
) -> Iterator[Identified]:
    """Takes the place of the fixture ``operator``."""
    operator.stop()
    path = operator_account.further(installed, namespace, "operator")
    running = Operator(installed, namespace, tmp_path / "operator.log", path)
    yield Identified(running, f"system:serviceaccount:{namespace}:operator")
    running.stop()


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that want all of the machine."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.slow
# shows: all CPUs are busy (every worker imports torch)
def test_starved_of_cpu(job: JobRun, installed: Cluster, identified: Identified) -> None:
    """While all pods import torch again and again beside busy loops, no member is reported lost.

    Not even a report is written: the API server hears what it does in steady state, 0.1/s + N/60 s, the
    operator included.
    """
    size = 4
    job.apply(lone_steps(job, "torch"), replicas=size, rendezvous=LIMITS)
    job.training(1, members=size)
    offset = installed.audit_log.stat().st_size
    began = time.monotonic()
    with busy_loops(BUSY_LOOPS):
        time.sleep(WINDOW_SECONDS)
    seconds = time.monotonic() - began
    events = audited(installed.audit_log, job.namespace, offset)
    requests = Counter(
        (who, event["verb"], event["objectRef"]["resource"])
        for event in events
        if (who := requester(event["user"], identified.user))
    )
    target = seconds * (0.1 + size / 60)
    assert sum(requests.values()) <= 1.5 * target + size, f"the target is {target:.0f}: {requests}"
    assert any(who == "pod" for who, _, _ in requests), "the leader has renewed its Lease"
    assert all(s["imports"] > 2 for s in last_steps(job)), "they were importing"
    undisturbed(job, 1, restarts=0)
    job.stop()
    job.complete()


def requester(user: dict[str, Any], operator: str) -> str:
    """ "operator", "pod", or "" for others (kubectl, the node agent, controllers)."""
    if user.get("username") == operator:
        return "operator"
    return "pod" if "authentication.kubernetes.io/pod-name" in user.get("extra", {}) else ""


def last_steps(job: JobRun) -> list[dict[str, Any]]:
    """The last step that each worker has logged."""
    return list({step["rank"]: step for step in job.steps()}.values())


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(10, id="briefly", marks=pytest.mark.slow),
        pytest.param(60, id="a-minute", marks=pytest.mark.slow),
    ],
)
# shows: the API server answers 429, 500 or 503 to everything, or hangs with all watches open
def test_the_api_server_is_in_trouble(job: JobRun, installed: Cluster, seconds: int) -> None:
    """It answers everything, new watches too, with 429 and Retry-After; with 500 and 503; then it hangs, with
    all watches open.

    I5: the round goes on through it all and past it, and a loss afterwards is noticed as ever.
    """
    job.apply(lone_steps(job), rendezvous=LIMITS)
    job.training(1)
    with refusing(installed, 429) as refusals:
        time.sleep(seconds)
        per_pod = refusals.given["elasticjob-handler", 429] / 2
        assert per_pod <= 2 * seconds, "Retry-After is heeded, by the watch and by the writer"
        for status in (429, 500, 503):
            refusals.status = status
            wait_for(
                lambda: all(refusals.given[client, refusals.status] for client in OURS),
                60,
                lambda: f"{OURS} have met {refusals.status}: {refusals.given}",
            )
    undisturbed(job, 1, restarts=0)

    server = installed.component("apiserver")
    server.freeze()
    try:
        time.sleep(min(seconds, 25))  # after more the cluster's own controllers would evict the pods
    finally:
        server.thaw()
    undisturbed(job, 1, restarts=0)
    job.kill_worker(job.member(1)["podName"])
    job.training(2)
    assert job.rounds()[1]["cause"] == "WorkerFailed"
    job.stop()
    job.complete()
