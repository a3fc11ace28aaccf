"""A node takes all members of a round with it, and the operator that leads where that is a pod."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from devcluster.control_plane import ControlPlane
from devcluster.kubelet.cluster import KubeletCluster
from elasticjob.contract.text import node_words
from tests.chart.release import Release
from tests.nodes.job import BOTH, DigitsJob
from tests.nodes.table import Recovery

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]


def prefers(node: str) -> dict[str, Any]:
    """Fields of a pod that goes to this node while it can, and is not spread over others."""
    wanted = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    term = {"weight": 100, "preference": {"matchExpressions": wanted}}
    return {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}},
        "topologySpreadConstraints": [],
    }


def node_of_the_leader(release: Release[KubeletCluster]) -> str:
    """Where the operator runs that leads."""
    pods = {pod["metadata"]["name"]: pod for pod in release.operators().values()}
    return str(pods[release.leader()]["spec"]["nodeName"])


@BOTH
def test_all_members_lose_their_node(
    cluster: ControlPlane,
    new_job: Callable[..., DigitsJob],
    table: Callable[[Recovery], None],
    request: pytest.FixtureRequest,
) -> None:
    node, installed, led = "node-a", None, ""
    if isinstance(cluster, KubeletCluster):
        release: Release[KubeletCluster] = request.getfixturevalue("installed")
        node, installed, led = node_of_the_leader(release), release, release.leader()
    job = new_job()
    job.apply(pod=prefers(node))
    job.training(members=2)
    job.wait_for(lambda: len(job.steps()) > 60, "some checkpoints are written")
    assert {job.node_of(pod) for pod in job.pods()} == {node}
    kubectl = cluster.kubectl
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
        if installed is not None:
            assert installed.leader() not in ("", led), "another operator leads, which says so"
        time.sleep(5)
        assert job.status()["currentRound"]["phase"] != "Active", "no proof, no round"
        kubectl("taint", "node", *taint)
        found = job.recovered(
            "the node of all members (and of the operator that leads) loses its power", struck
        )
        table(found)
        assert (found.cause, found.account) == ("NodeLost", "infrastructure")
        # As the node's condition or its taint says, whichever is there first.
        problems = [f"was lost: {node_words(node)} is {problem}" for problem in ("not ready", "unreachable")]
        assert any(problem in found.message for problem in problems), found.message
    finally:
        kubectl("taint", "node", taint[0], f"{taint[1]}-", check=False)
        job.power_on(node)
    job.wait_for(lambda: job.is_ready(node), "the node is ready")
    job.training(members=2)
    if installed is not None:
        installed.operators()
