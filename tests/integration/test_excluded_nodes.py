"""Nodes that failed a job are avoided by its new pods: with the real operator, API server and scheduler.

What excludes a node, and for how long, is shown in ``tests/scenarios``; here that the scheduler does as the
pods say.
"""

# shows: a node fails the job twice within an hour

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devcluster.cluster import Cluster
from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


@contextmanager
def only_room_on(cluster: Cluster, node: str) -> Iterator[None]:
    """No other node takes new pods."""
    others = [name for name in cluster.node_names if name != node]
    try:
        cluster.kubectl("cordon", *others)
        yield
    finally:
        cluster.kubectl("uncordon", *others)


def running(job: PlayedJob, name: str) -> str:
    """Wait until the pod runs; returns its node."""
    job.wait_for(lambda: job.pods().get(name, {}).get("status", {}).get("phase") == "Running", f"{name} runs")
    return str(job.pods()[name]["spec"]["nodeName"])


def unschedulable(job: PlayedJob, name: str) -> str:
    """Wait until the scheduler has found no node for the pod; returns what it says."""

    def verdict() -> dict[str, Any]:
        conditions = job.pods().get(name, {}).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c.get("reason") == "Unschedulable"), {})

    job.wait_for(verdict, f"{name} is unschedulable")
    return str(verdict()["message"])


def test_the_scheduler_spreads_the_pods_of_a_job(job: PlayedJob) -> None:
    """Over all nodes, and more of them than there are nodes run all the same."""
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    nodes = cluster.node_names
    job.apply(replicas=2 * len(nodes), minReplicas=1)
    assert {running(job, f"job-{slot}-0") for slot in range(2 * len(nodes))} == set(nodes)


def bind(job: PlayedJob, name: str, node: str) -> None:
    """Give the pod this node, as a scheduler would that asks for no affinity."""
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    job.wait_for(lambda: name in job.pods(), f"{name} is there")
    path = f"/api/v1/namespaces/{job.namespace}/pods/{name}/binding"
    target = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
    answer = cluster.api.request("POST", path, target)
    assert answer.ok, answer.text


def lost_twice(job: PlayedJob, node: str, place: Callable[[str], object]) -> None:
    """Both pods run on the node, which ends the second one twice; ``place`` is called for each new pod."""
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    for name in ("job-0-0", "job-1-0"):
        place(name)
        assert running(job, name) == node
    for attempt in range(2):
        job.join("job-0-0", f"job-1-{attempt}")
        job.round(attempt + 1)
        cluster.nodes.evict_pod(job.namespace, f"job-1-{attempt}")
        place(f"job-1-{attempt + 1}")
        if not attempt:
            assert running(job, "job-1-1") == node


def test_a_node_that_the_template_names_is_not_excluded(job: PlayedJob) -> None:
    """Its kubelet would reject each pod that avoids it: nodeName goes around the scheduler."""
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    node = cluster.node_names[0]
    job.apply(pod={"nodeName": node})
    lost_twice(job, node, lambda _: None)
    assert running(job, "job-1-2") == node
    assert "excludedNodes" not in job.status()
    said = job.told("NodeNotExcluded")[0]
    assert f"{node} is not excluded because the template allows no other node: 2 failures" in said
    job.join("job-0-0", "job-1-2")
    assert job.round(3)["members"] == 2


def test_an_exclusion_is_lifted_when_a_kubelet_rejects_the_pod(job: PlayedJob) -> None:
    """A scheduler of one's own binds pods where they do not want to be."""
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    node = cluster.node_names[0]
    job.apply(pod={"schedulerName": "by-hand"})
    lost_twice(job, node, lambda name: bind(job, name, node))
    assert "job-1-2 cannot be (NodeAffinity: Pod was rejected: " in job.told("NodeExclusionLifted")[0]
    bind(job, "job-1-3", node)
    assert running(job, "job-1-3") == node
    job.join("job-0-0", "job-1-3")
    assert job.round(3)["members"] == 2


def test_a_node_that_failed_twice_is_avoided_while_there_are_others(job: PlayedJob) -> None:
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    job.apply(minReplicas=1)
    running(job, "job-0-0")
    bad = running(job, "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)

    with only_room_on(cluster, bad):
        cluster.nodes.evict_pod(job.namespace, "job-1-0")
        assert running(job, "job-1-1") == bad, "once may be bad luck"
        job.join("job-0-0", "job-1-1")
        assert job.round(2)["cause"] == "NodePressure"
        assert "excludedNodes" not in job.status()

        cluster.nodes.evict_pod(job.namespace, "job-1-1")
        assert "affinity" in unschedulable(job, "job-1-2"), "there is room, on the node that it avoids"
        (excluded,) = job.status()["excludedNodes"]
        assert excluded["name"] == bad
        assert "2 failures within an hour" in excluded["message"]
        assert excluded["message"] in job.told("NodeExcluded")[0]
        job.join("job-0-0")
        job.round(3)
        sentence = f"(avoids {bad}, see status.excludedNodes)"
        job.wait_for(
            lambda: sentence in job.condition("Training")["message"], "the condition says what is in the way"
        )
    assert running(job, "job-1-2") != bad
    job.join("job-1-2")
    job.wait_for(lambda: job.status()["currentRound"]["phase"] == "Broken", "the round is broken to grow")
    job.join("job-0-0")
    assert job.round(4)["members"] == 2
    charged = job.charges()
    assert charged["infrastructure"] == 2

    with only_room_on(cluster, bad):
        job.patch(minReplicas=2)
        cluster.kubectl("-n", job.namespace, "delete", "pod", "job-1-2", "--wait=false")
        job.join("job-0-0")
        assert running(job, "job-1-4") == bad, "better there than not at all"
        (excluded,) = job.status()["excludedNodes"]
        assert excluded["liftedTime"] < excluded["untilTime"]
        assert "job-1-3 cannot be" in excluded["message"]
        assert bad in job.told("NodeExclusionLifted")[0]
        job.join("job-1-4")
        assert job.round(5)["cause"] == "PodDeleted"
    assert job.charges() == charged | {"preemption": 1}, "nothing is charged for pods that never had a node"
