"""A node takes all members of a round, and the operator that leads, with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release
from tests.nodes.job import NodesJob, Recovery

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900)]


def prefers(node: str) -> dict[str, Any]:
    """Fields of a pod that goes to this node while it can."""
    wanted = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    term = {"weight": 100, "preference": {"matchExpressions": wanted}}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}


def test_all_members_and_the_leading_operator_lose_their_node(
    new_job: Callable[..., NodesJob], installed: Release[KubeletCluster], table: Callable[[Recovery], None]
) -> None:
    pods = {pod["metadata"]["name"]: pod for pod in installed.operators().values()}
    node = pods[installed.leader()]["spec"]["nodeName"]
    job = new_job()
    job.apply(pod=prefers(node))
    job.training(members=2)
    job.wait_for(lambda: len(job.steps()) > 60, "some checkpoints are written")
    assert {job.node_of(pod) for pod in job.pods()} == {node}
    kubectl = job.cluster.kubectl
    taint = f"{node}", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    struck = job.power_off(node)
    try:
        job.wait_for(
            lambda: job.condition("Training").get("reason") == "WaitingForFencing", "it waits for a proof"
        )
        said = job.condition("Training")["message"]
        assert node in said
        assert "out-of-service" in said, "the remedy is named"
        assert job.end_of(1)["account"] == "infrastructure"
        time.sleep(5)
        assert job.status()["currentRound"]["phase"] != "Active", "no proof, no round"
        kubectl("taint", "node", *taint)
        found = job.recovered("the node of all members and of the operator that leads", struck)
        table(found)
        assert found.cause == "NodeLost"
    finally:
        kubectl("taint", "node", taint[0], f"{taint[1]}-", check=False)
        job.power_on(node)
    job.wait_for(lambda: job.is_ready(node), "the node is ready")
    job.training(members=2)
    installed.operators()
