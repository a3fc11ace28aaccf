"""One API server of several is lost without a word: the connections that some pods have to it are dead.

New connections reach another server at once. Whoever holds a dead watch hears of no round, and a write on a
dead connection arrives nowhere; nobody who trains well may be taken for lost by that, nor by an operator
that holds one.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from tests import operator_account
from tests.e2e.job import SCRIPTS, TORCHRUN, JobRun, Operator

BOOKMARKS_SECONDS = 70.0
"""Sooner than bookmarks that do not come show that a watch is dead."""

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("script", "slot"),
    [
        pytest.param(
            "steps.py", 1, marks=pytest.mark.slow, id="a member whose workers fail with the lost one's"
        ),
        pytest.param("lone_steps.py", 1, marks=pytest.mark.slow, id="a member whose workers go on"),
        pytest.param("lone_steps.py", 0, id="the leader"),
    ],
)
# shows: one API server of several fails silently, with the connections of some pods
def test_nobody_is_lost_with_an_api_server(job: JobRun, installed: Cluster, script: str, slot: int) -> None:
    proxy = installed.proxy()
    way = f"export KUBERNETES_SERVICE_HOST={proxy.host} KUBERNETES_SERVICE_PORT={proxy.port}"
    train = shlex.join([*TORCHRUN, str(SCRIPTS / script), str(job.folder)])
    choose = f"case $ELASTICJOB_POD_NAME in job-{slot}-*) {way};; esac"
    job.apply(replicas=3, command=["sh", "-c", f"{choose}; exec {train}"])
    job.training(1, members=3)
    pods = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    proxy.strand()
    job.kill_pod("job-2-0")
    nobody_but_the_last_is_lost(job, pods)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [True, False], ids=["after the round was broken", "before"])
# shows: one API server of several fails silently, with the connections of the operator
def test_nobody_is_lost_by_what_the_operator_does_not_hear(
    job: JobRun, installed: Cluster, namespace: str, tmp_path: Path, operator: Operator, broken: bool
) -> None:
    """Its watches and all connections that it keeps are dead when members announce themselves again."""
    operator.stop()
    proxy = installed.proxy()
    path = operator_account.config(installed, proxy.server)
    flags = ("--leader-elect", f"--leader-elect-resource-namespace={namespace}")  # as in the chart
    deaf = Operator(installed, namespace, tmp_path / "deaf.log", path, flags)
    try:
        job.apply(replicas=3, command=[*TORCHRUN, str(SCRIPTS / "lone_steps.py"), str(job.folder)])
        job.training(1, members=3)
        pods = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
        for pod in ("job-0-0", "job-1-0"):
            for pid in job.worker_pids(pod):
                os.kill(pid, signal.SIGSTOP)  # so its agent comes back after 10 s only
        began = time.monotonic()
        if not broken:
            proxy.strand()
        job.kill_pod("job-2-0")
        if broken:
            job.wait_for(lambda: "job-2-1" in leases(job), "its successor has joined")
            proxy.strand()
        job.training(2, members=3)
        assert time.monotonic() - began < BOOKMARKS_SECONDS
        nobody_but_the_last_is_lost(job, pods)
    finally:
        deaf.stop()


def leases(job: JobRun) -> set[str]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{job.namespace}/leases"
    return {lease["metadata"]["name"] for lease in job.cluster.read(path)["items"]}


def nobody_but_the_last_is_lost(job: JobRun, pods: dict[str, str]) -> None:
    """The third of three is replaced; ``pods``: the UIDs before."""
    job.training(2, members=3)
    job.goes_on(job.round()["number"])
    assert [past["cause"] for past in job.rounds()] == ["Started", "PodLost"], job.rounds()
    now = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    assert all(now.get(f"job-{one}-0") == pods[f"job-{one}-0"] for one in (0, 1)), now
    job.stop()
    job.complete()
