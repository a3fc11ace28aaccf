"""Nodes are lost in all the ways that Kubernetes has a name for; each job gets its next round without them.

What Kubernetes does by itself takes its time: jobs wait for it together, each on nodes of its own. What pods
say last, only a watch hears: one on a lost node ends when another source says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.nodeagent.client import NodeAgentError
from tests.e2e.job import ROOT, SCRIPTS, TORCHRUN, JobRun
from tests.e2e.pod_history import PodHistory

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

NODES_OF_A_JOB = 3
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One with nodes for three jobs."""
    with Cluster(nodes=3 * NODES_OF_A_JOB) as started:
        yield started


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    """The same, with the resource definition."""
    crd.install(cluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
    return cluster


def placement(job: JobRun, nodes: list[str]) -> dict[str, Any]:
    """The part of a pod's spec that keeps the job on these nodes, its pods apart, and lets it leave a lost
    node after a second."""
    together = {"matchLabels": {"elasticjob.dev/job-name": job.name}}
    hosts = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}
    return {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [hosts]}
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": together, "topologyKey": "kubernetes.io/hostname"}
                ]
            },
        },
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{lost}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 1,
            }
            for lost in ("not-ready", "unreachable")
        ],
    }


def node(job: JobRun, name: str) -> dict[str, Any]:
    """A node's object, {} if there is none."""
    answer = job.cluster.api.request("GET", f"/api/v1/nodes/{name}")
    return answer.json() if answer.ok else {}


def taints(job: JobRun, name: str) -> set[tuple[str, str]]:
    """The key and effect of each taint of a node."""
    return {(t["key"], t["effect"]) for t in node(job, name).get("spec", {}).get("taints", [])}


# shows: a node is NotReady and its pods are silent
# shows: Kubernetes evicts from an unreachable node, and the pod stays in Terminating
# shows: a node gets the taint out-of-service and is not ready
# shows: a machine dies, and its peers' collectives fail before a heartbeat is missed
def test_nodes_are_lost(job: JobRun) -> None:
    """Cut off with its pods running; off for good and declared out of service; its object deleted."""
    cluster = job.cluster
    history = PodHistory(cluster, job.namespace)
    cut, dead, deleted = jobs = [job.beside(name) for name in ("cut", "dead", "deleted")]
    for index, one in enumerate(jobs):
        names = cluster.node_names[index * NODES_OF_A_JOB :][:NODES_OF_A_JOB]
        # Steps that need no other rank show whether the training goes on; the dead node's peer has others.
        lone = [*TORCHRUN, str(SCRIPTS / "lone_steps.py"), str(one.folder)]
        one.apply(
            command=None if one is dead else lone,
            pod=placement(one, names),
            rendezvous={"heartbeatTimeoutSeconds": 3},
        )
    for one in jobs:
        one.training(1, members=2)
    # A leader's node as well as others'.
    lost = {one.name: one.member(0 if one is deleted else 1)["podName"] for one in jobs}
    nodes = {one.name: one.pods()[lost[one.name]]["spec"]["nodeName"] for one in jobs}

    cluster.nodes.kill_node(nodes["dead"])
    cluster.nodes.cut_node(nodes["cut"])
    cluster.nodes.cut_node(nodes["deleted"])
    try:
        cluster.kubectl("delete", "node", nodes["deleted"])
        dead.training(2, members=2)
        deleted.training(2, members=2)

        # The kubelet is silent and the training goes on, until Kubernetes evicts the pod.
        cut.wait_for(lambda: history.disruption(lost["cut"]), "the pod of the node cut off is evicted")
        assert history.disruption(lost["cut"])["reason"] == "DeletionByTaintManager"
        assert ("node.kubernetes.io/unreachable", "NoExecute") in taints(cut, nodes["cut"])
        cut.training(2, members=2)

        # No round waits for pods that can't end. That of the deleted node may be gone by now: Kubernetes
        # collects it after 40 s.
        for one in jobs:
            states = history.states(lost[one.name])
            assert any("deletionTimestamp" in state["metadata"] for state in states), one.name
            assert history.came_before_the_end_of(lost[one.name], replacement(lost[one.name])), one.name
            assert one is deleted or not history.gone(lost[one.name]), one.name
            lost_with_its_node(one)

        dead.wait_for(
            lambda: ("node.kubernetes.io/unreachable", "NoExecute") in taints(dead, nodes["dead"]),
            "the dead node is noticed",
        )
        cluster.kubectl("taint", "node", nodes["dead"], f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")
        dead.wait_for(lambda: history.gone(lost["dead"]), "the pod of the node out of service is gone")
        assert history.states(lost["dead"])[-1]["status"]["phase"] == "Failed"
        assert not history.gone(lost["cut"]), "nobody knows whether this one has ended"
    finally:
        cluster.nodes.start_node(nodes["dead"])
        for name in ("cut", "deleted"):
            cluster.nodes.restore_node(nodes[name])

    for one in jobs:
        one.gone(lost[one.name])
        undisturbed(one)
        assert {s["round"] for s in one.steps() if s["pod"] == lost[one.name]} == {1}, "it was in no other"
    for one in jobs:
        one.complete()


@pytest.mark.slow
@pytest.mark.timeout(900)
# shows: the whole job is cut off, or all its nodes are lost; all workers save with ...
def test_a_whole_round_is_cut_off_and_its_checkpoints_are_fenced(job: JobRun) -> None:
    """All members are on one node, which goes on without the API server: the next round needs no proof of
    their end, and what they save from then on is refused."""
    cluster, (node_name, *others) = job.cluster, job.cluster.node_names
    job.deadline = 300
    try:
        cluster.kubectl("cordon", *others)
        job.apply(
            command=[*TORCHRUN, str(SCRIPTS / "saves.py"), str(job.folder)],
            rendezvous={"heartbeatTimeoutSeconds": 3},
        )
        job.training(1, members=2)
        job.wait_for(lambda: job.round().get("fenced"), "all workers have opened their checkpoints")
        cluster.kubectl("uncordon", *others)
        cluster.nodes.cut_node(node_name)
        second = job.training(2, members=2)
        assert "all its workers use elasticjob.checkpoint" in second["message"], second
        old = {job.member(rank)["podName"] for rank in (0, 1)}
        assert old == {"job-0-1", "job-1-1"}
        job.wait_for(lambda: (job.folder / "stale-1").exists(), "the first round may not save any more")
        assert min(s["step"] for s in job.steps(2)) > 0, "resumed"
    finally:
        cluster.kubectl("uncordon", *others, check=False)
        cluster.nodes.restore_node(node_name)
    job.stop()
    job.complete()


@pytest.mark.slow
# shows: a node object is deleted
def test_the_pod_of_a_deleted_node_is_collected(job: JobRun) -> None:
    """Kubernetes gives a deleted node 40 to 60 s to come back; the job does not wait for that."""
    cluster = job.cluster
    history = PodHistory(cluster, job.namespace)
    job.apply(pod=placement(job, cluster.node_names[:NODES_OF_A_JOB]))
    job.training(1, members=2)
    pod = job.member(1)["podName"]
    lost = job.pods()[pod]["spec"]["nodeName"]
    cluster.nodes.cut_node(lost)
    try:
        cluster.kubectl("delete", "node", lost)
        job.training(2, members=2)
        lost_with_its_node(job)
        job.wait_for(lambda: history.gone(pod), "the pod of the deleted node is gone")
        assert history.states(pod)[-1]["status"]["phase"] == "Failed"
        assert history.disruption(pod)["reason"] == "DeletionByPodGC"
        assert runs(job, pod), "nobody could tell the node"
    finally:
        cluster.nodes.restore_node(lost)
    job.wait_for(lambda: not runs(job, pod), "the node is back and has ended what nobody knows any more")
    undisturbed(job)
    job.complete()


def replacement(pod: str) -> str:
    """The name of the pod that follows the first one of a slot."""
    assert pod.endswith("-0"), pod
    return f"{pod.removesuffix('-0')}-1"


def lost_with_its_node(job: JobRun) -> None:
    """Wait until the second round's cause is the node's loss: sometimes its peers' errors are seen first."""
    job.wait_for(lambda: job.rounds()[1]["cause"] == "NodeLost", "the cause of round 2 is NodeLost", 60)
    assert job.rounds()[1]["account"] == "infrastructure"
    charged = {account["name"]: account["used"] for account in job.status()["accounts"] if account["used"]}
    assert charged == {"infrastructure": 1}


def undisturbed(job: JobRun) -> None:
    """The second round has gone on, no zombie disturbed it; the job may come to its end."""
    job.goes_on(2)
    assert job.round()["number"] == 2
    assert job.status()["restarts"] == 1
    job.stop()


def runs(job: JobRun, pod: str) -> bool:
    """Whether the pod's processes are still there, whatever the API server knows."""
    try:
        return bool(job.cluster.nodes.pids(job.namespace, pod))
    except NodeAgentError:
        return False
