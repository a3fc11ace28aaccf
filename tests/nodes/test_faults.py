"""What a running job meets on real nodes: each fault with its cause, account and sentence, and how training
goes on. The table at the end of the run has what each has cost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster.kubelet.cluster import KubeletCluster
from devcluster.wait import wait_for
from tests.chart.release import Release
from tests.nodes.job import NodesJob, Recovery

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900)]


@pytest.fixture
def job(
    installed: Release[KubeletCluster], cluster: KubeletCluster, namespace: str, tmp_path: Path
) -> Iterator[NodesJob]:
    """A job of two pods on two nodes that has made some steps."""
    del installed
    run = NodesJob(cluster, namespace, tmp_path / "checkpoints")
    run.apply()
    run.training(1, members=2)
    run.wait_for(lambda: len(run.steps()) > 60, "some checkpoints are written")
    assert {run.node_of(pod) for pod in run.pods()} == {"node-a", "node-b"}
    yield run
    run.delete("--wait=false")


def test_torchrun_is_killed(job: NodesJob, table: Callable[[Recovery], None]) -> None:
    pod = job.member(1)
    struck = job.strike(job.pids(pod)[0], signal.SIGKILL)
    found = job.recovered("kill -9 of torchrun", 1, struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("PodLost", "infrastructure")
    assert "SIGKILL" in found.message


def test_a_worker_is_killed(job: NodesJob, table: Callable[[Recovery], None]) -> None:
    pods = set(job.pods())
    struck = job.strike(job.worker(job.member(1)), signal.SIGKILL)
    found = job.recovered("kill -9 of a worker", 1, struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("WorkerFailed", "application")
    assert "SIGKILL" in found.message
    assert set(job.pods()) == pods, "no pod was replaced"


def test_a_pod_is_deleted(job: NodesJob, table: Callable[[Recovery], None]) -> None:
    struck = time.time()
    job.kubectl("delete", "pod", job.member(0), "--wait=false")
    found = job.recovered("kubectl delete pod of rank 0", 1, struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("PodDeleted", "preemption")


def test_a_worker_is_stopped_and_goes_on(job: NodesJob) -> None:
    """SIGSTOP of a worker for less than any limit: nobody is lost."""
    worker = job.worker(job.member(1))
    job.strike(worker, signal.SIGSTOP)
    time.sleep(5)  # the fault itself
    job.strike(worker, signal.SIGCONT)
    before = len(job.steps())
    job.wait_for(lambda: len(job.steps()) > before + 10, "training goes on")
    assert job.status()["currentRound"]["number"] == 1


def test_a_node_loses_its_power_and_comes_back(job: NodesJob, table: Callable[[Recovery], None]) -> None:
    lost = job.member(1)
    node = job.cluster.nodes[job.node_of(lost)]
    struck = time.time()
    node.kill()
    found = job.recovered("a node is switched off, with one member", 1, struck)
    table(found)
    assert found.account == "infrastructure"
    assert found.cause in ("Unreachable", "NodeLost")
    wait_for(
        lambda: job.status()["roundHistory"][0]["end"]["cause"] == "NodeLost",
        120,
        "the charge moves to the node's loss",
    )
    node.start()
    job.wait_for(lambda: lost not in job.pods(), "the pod of the dead node is gone", 400)


def test_a_node_is_drained(job: NodesJob, table: Callable[[Recovery], None]) -> None:
    pod = job.member(1)
    node = job.node_of(pod)
    struck = time.time()
    try:
        drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s"]
        job.cluster.kubectl(*drain, f"--pod-selector=elasticjob.dev/job-name={job.name}", timeout=320)
        found = job.recovered("kubectl drain of a node", 1, struck, members=2)
    finally:
        job.cluster.kubectl("uncordon", node)
    table(found)
    assert found.account == "preemption"
    assert "evict" in found.message.lower()
