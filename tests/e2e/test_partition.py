"""Paths are cut between pods that go on running, in network namespaces of their own."""

from __future__ import annotations

import os

import pytest

from tests.e2e.job import JobRun

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.devcluster,
    pytest.mark.root,
    pytest.mark.slow,
]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
NETNS = {"devcluster/network": "netns"}
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {
                    "matchExpressions": [{"key": "elasticjob.dev/job-name", "operator": "Exists"}]
                },
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }
}


@needs_root
@pytest.mark.parametrize("victim", ["a member", "the leader"])
# shows: a node is cut off
def test_a_node_is_cut_off_with_its_pods_running(job: JobRun, victim: str) -> None:
    """I4: the zombies neither join nor disturb, also when the node is back."""
    job.apply(
        annotations=NETNS,
        pod={"affinity": APART},
        rendezvous={"heartbeatTimeoutSeconds": 3},
    )
    first = job.training(1, members=2)
    pods = job.pods()
    lost = (
        first["leaderPodName"]
        if victim == "the leader"
        else next(n for n in pods if n != first["leaderPodName"])
    )
    node = pods[lost]["spec"]["nodeName"]
    job.cluster.nodes.cut_node(node)
    try:
        second = job.training(2, members=2)
        zombie_steps = len([s for s in job.steps(1) if s["pod"] == lost])
        assert job.rounds()[1]["account"] == "infrastructure"
        assert lost not in {p["podName"] for p in job.status()["participants"]}
        assert job.worker_pids(lost) or zombie_steps, "its processes were running"
    finally:
        job.cluster.nodes.restore_node(node)
    job.wait_for(lambda: lost not in job.pods(), "the zombie is gone")
    job.goes_on(second["number"])
    assert job.round()["number"] == second["number"], "the zombie disturbed nobody"
    assert job.status()["restarts"] == 1
    job.stop()
    job.complete()
