"""A node is tainted because it is about to go: with the real operator, API server and scheduler.

What is decided then is shown in ``tests/scenarios``; here that the taint is seen, and that the scheduler puts
the next pod elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devcluster.access import ClusterAccess
from devcluster.cluster import Cluster
from elasticjob.contract.names import JOB_LABEL
from elasticjob.contract.text import node_words
from tests.integration.lifecycle_job import PlayedJob
from tests.integration.test_excluded_nodes import running

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

APART = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchExpressions": [{"key": JOB_LABEL, "operator": "Exists"}]},
        }
    ]
}
TAINT = "karpenter.sh/disrupted"


@contextmanager
def tainted(cluster: ClusterAccess, node: str) -> Iterator[None]:
    """The node is about to go."""
    try:
        cluster.kubectl("taint", "node", node, f"{TAINT}:NoSchedule")
        yield
    finally:
        cluster.kubectl("taint", "node", node, f"{TAINT}-")


# shows: a node gets a taint that says that it is about to go (Karpenter, the cluster ...
def test_a_node_that_is_about_to_go_is_left(job: PlayedJob) -> None:
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    job.apply(pod={"affinity": {"podAntiAffinity": APART}}, minReplicas=1)
    running(job, "job-0-0")
    going = running(job, "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    job.drain()

    with tainted(cluster, going):
        assert running(job, "job-1-1") != going
        sentence = f"job-1-0 (group rank 1) leaves {node_words(going)}, which has the taint {TAINT}"
        job.wait_for(lambda: sentence in job.condition("Training")["message"], "it says why a pod leaves")
        assert f"job-1-0 leaves {node_words(going)}, which has the taint {TAINT}" in job.told("NodeNotice")[0]
        assert "drain" not in job.status()["currentRound"], "it trains until the next pod has joined"
        assert "deletionTimestamp" not in job.pods()["job-1-0"]["metadata"]

        job.join("job-1-1")
        assert sentence in job.reads("Training", "Draining")["message"]
        assert "deletionTimestamp" not in job.pods()["job-1-0"]["metadata"], "its workers are still to stop"
        job.drain(stopped=120)
        job.wait_for(lambda: "job-1-0" not in job.pods(), "the pod on the node is deleted")
        job.join("job-0-0")
        formed = job.round(2)
    assert (formed["cause"], formed["members"]) == ("Preempted", 2)
    assert sentence in formed["message"]
    ended: dict[str, Any] = job.status()["roundHistory"][1]["end"]
    assert (ended["cause"], ended["drain"]) == ("Preempted", "Stopped")
    assert job.charges()["preemption"] == 1


def test_a_pod_that_tolerates_the_taint_stays(job: PlayedJob) -> None:
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    job.apply(pod={"tolerations": [{"operator": "Exists"}]}, minReplicas=1)
    running(job, "job-0-0")
    node = running(job, "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    with tainted(cluster, node):
        cluster.kubectl("-n", job.namespace, "delete", "pod", "job-0-0", "--wait=false")
        running(job, "job-0-1")
        assert "job-1-1" not in job.pods(), "a pass was made after the taint"
