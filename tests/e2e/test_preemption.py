"""A member has to go because somebody else needs its place: the scheduler, the eviction API, kubelet.

Each test shows first what Kubernetes itself says on the pod, then what the job makes of it.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from devcluster.wait import wait_for
from tests.e2e.job import DEADLINE, SCRIPTS, TORCHRUN, JobRun, apart
from tests.e2e.pod_history import PodHistory

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.slow]

HALF_A_NODE = {"requests": {"cpu": "32"}, "limits": {"cpu": "32"}}
"""Of devcluster's nodes, which have 64."""


def charged(job: JobRun) -> dict[str, int]:
    """What each account has been charged with, without those that have nothing."""
    return {a["name"]: a["used"] for a in job.status()["accounts"] if a["used"]}


def caused(job: JobRun, number: int, cause: str, account: str) -> dict[str, Any]:
    """Wait until the round's cause is this one: the best evidence may come last, and moves the charge."""
    job.wait_for(
        lambda: job.rounds()[number - 1]["cause"] == cause, f"the cause of round {number} is {cause}", 30
    )
    found = job.rounds()[number - 1]
    assert found["account"] == account
    return found


# shows: the scheduler preempts a pod
def test_the_scheduler_preempts_a_member(job: JobRun) -> None:
    """The node is full and a more important pod comes: training goes on with the rest, and grows again."""
    cluster, node = job.cluster, job.cluster.node_names[0]
    here = {"nodeSelector": {"kubernetes.io/hostname": node}, "resources": HALF_A_NODE}
    history = PodHistory(cluster, job.namespace)
    job.apply(pod=here, replicas=2, minReplicas=1)
    job.training(1, members=2)
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": job.namespace},
        "value": 1000,
    }
    important = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "important", "namespace": job.namespace},
        "spec": {
            "priorityClassName": job.namespace,
            "containers": [{"name": "main", "image": "any", "command": ["sleep", "600"]}],
            "terminationGracePeriodSeconds": 1,
            **here,
        },
    }
    try:
        cluster.apply(json.dumps(priority))
        cluster.apply(json.dumps(important))
        job.training(2, members=1)
        victim = next(pod for pod in ("job-0-0", "job-1-0") if history.disruption(pod))
        assert history.disruption(victim)["reason"] == "PreemptionByScheduler"
        assert any("deletionTimestamp" in state["metadata"] for state in history.states(victim))
        cluster.kubectl(
            "-n", job.namespace, "wait", "pod/important", "--for=condition=Ready", f"--timeout={DEADLINE}s"
        )
        caused(job, 2, "Preempted", "preemption")
        assert charged(job) == {"preemption": 1}
        replacement = victim.removesuffix("0") + "1"
        job.wait_for(
            lambda: replacement in job.condition("Training")["message"],
            "the status says who can't be scheduled",
        )
        assert "Insufficient cpu" in job.condition("Training")["message"], "in the scheduler's own words"
        job.goes_on(2)
    finally:
        cluster.kubectl("-n", job.namespace, "delete", "pod/important", "--ignore-not-found")
        cluster.kubectl("delete", "priorityclass", job.namespace, "--ignore-not-found")
    third = job.training(3, members=2)
    assert third["cause"] == "ScaledUp"
    assert charged(job)["preemption"] == 1
    job.stop()
    job.complete()


# shows: the scheduler preempts a pod
def test_the_scheduler_takes_pods_beyond_the_minimum_first(job: JobRun) -> None:
    """Others are more important than these pods, and less than those without which the job does not train."""
    cluster, node = job.cluster, job.cluster.node_names[0]
    here = {"nodeSelector": {"kubernetes.io/hostname": node}, "resources": HALF_A_NODE}
    classes = {name: f"{job.namespace}-{name}" for name in ("low", "middle", "high")}
    history = PodHistory(cluster, job.namespace)
    try:
        for value, name in enumerate(classes.values()):
            cluster.apply(
                json.dumps(
                    {
                        "apiVersion": "scheduling.k8s.io/v1",
                        "kind": "PriorityClass",
                        "metadata": {"name": name},
                        "value": value,
                    }
                )
            )
        job.apply(
            pod={"priorityClassName": classes["high"], **here},
            replicas=2,
            minReplicas=1,
            scaling={"extraPriorityClassName": classes["low"]},
        )
        job.training(1, members=2)
        for name in ("first", "second"):
            other = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": job.namespace},
                "spec": {
                    "priorityClassName": classes["middle"],
                    "containers": [{"name": "main", "image": "any", "command": ["sleep", "600"]}],
                    "terminationGracePeriodSeconds": 1,
                    **here,
                },
            }
            cluster.apply(json.dumps(other))
        job.training(2, members=1)
        assert history.disruption("job-1-0")["reason"] == "PreemptionByScheduler"
        assert not history.disruption("job-0-0")
        job.goes_on(2)
    finally:
        cluster.kubectl("-n", job.namespace, "delete", "pod", "first", "second", "--ignore-not-found")
        cluster.kubectl("delete", "priorityclass", *classes.values(), "--ignore-not-found")
    job.stop()
    job.complete()


@pytest.mark.slow
# shows: a pod is evicted through the API (`kubectl drain --delete-emptydir-data`; without ...
def test_members_are_evicted(job: JobRun) -> None:
    """Within a disruption budget, which learns the job's size from /scale; and by kubectl drain."""
    cluster = job.cluster
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "job", "namespace": job.namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"elasticjob.dev/job-name": "job"}}},
    }
    path = f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets/job"
    cluster.apply(json.dumps(budget))
    history = PodHistory(cluster, job.namespace)
    job.apply([*TORCHRUN, str(SCRIPTS / "lone_steps.py"), str(job.folder)], pod=apart(job))
    job.training(1, members=2)

    def budget_status() -> dict[str, Any]:
        status: dict[str, Any] = cluster.api.request("GET", path).json().get("status", {})
        return status

    def allowed() -> bool:
        # The controller manager hears of a new resource definition within half a minute. A budget that it
        # could not work out before it looks at again only when something changes.
        if budget_status()["conditions"][0]["reason"] == "SyncFailed":
            touched = {"metadata": {"annotations": {"touched": str(time.monotonic())}}}
            cluster.api.request("PATCH", path, touched, content_type="application/merge-patch+json")
        return bool(budget_status()["disruptionsAllowed"] == 1)

    wait_for(allowed, DEADLINE, lambda: f"the budget allows one eviction: {budget_status()}", interval=0.5)
    assert budget_status()["expectedPods"] == 2

    first, other = (
        cluster.api.request("POST", f"/api/v1/namespaces/{job.namespace}/pods/{pod}/eviction", evict(pod))
        for pod in ("job-1-0", "job-0-0")
    )
    assert first.ok, first
    assert other.status == 429, f"one at a time: {budget_status()} {job.pods()}"
    assert "disruption budget" in other.text
    job.training(2, members=2)
    assert history.disruption("job-1-0")["reason"] == "EvictionByEvictionAPI"
    assert not history.disruption("job-0-0")
    caused(job, 2, "Evicted", "preemption")

    wait_for(allowed, DEADLINE, lambda: f"the budget allows another: {budget_status()}", interval=0.5)
    node = job.pods()["job-0-0"]["spec"]["nodeName"]
    try:
        chosen = [
            "--pod-selector=elasticjob.dev/job-name=job",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
        ]
        cluster.kubectl("drain", node, *chosen, f"--timeout={DEADLINE:.0f}s", timeout=2 * DEADLINE)
        job.training(3, members=2)
        caused(job, 3, "Evicted", "preemption")
        assert node not in {pod["spec"]["nodeName"] for pod in job.pods().values()}
    finally:
        cluster.kubectl("uncordon", node)
    assert charged(job) == {"preemption": 2}
    job.stop()
    job.complete()


def evict(pod: str) -> dict[str, Any]:
    """The body of an eviction."""
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}


@pytest.mark.slow
# shows: the kubelet evicts a pod: memory or disk is short
# shows: a pod's machine is shut down (a spot node)
def test_kubelet_ends_members(job: JobRun) -> None:
    """Under memory pressure, which is the infrastructure's fault, and because a spot node is reclaimed."""
    job.apply(pod=apart(job))
    job.training(1, members=2)
    job.cluster.nodes.evict_pod(job.namespace, "job-1-0")
    job.training(2, members=2)
    job.wait_for(lambda: job.pods()["job-1-0"]["status"]["phase"] == "Failed", "the eviction is over")
    evicted = job.pods()["job-1-0"]["status"]
    assert (evicted["phase"], evicted["reason"]) == ("Failed", "Evicted")
    assert [c["reason"] for c in evicted["conditions"] if c["type"] == "DisruptionTarget"] == [
        "TerminationByKubelet"
    ]
    second = caused(job, 2, "NodePressure", "infrastructure")
    assert "low on resource: memory" in second["message"], "in kubelet's own words"

    node = job.pods()["job-0-0"]["spec"]["nodeName"]
    job.cluster.nodes.shut_down_node(node)
    try:
        job.training(3, members=2)
        terminated = job.pods()["job-0-0"]["status"]
        assert (terminated["phase"], terminated["reason"]) == ("Failed", "Terminated")
        caused(job, 3, "Preempted", "preemption")
        live = {pod["spec"]["nodeName"] for name, pod in job.pods().items() if not name.endswith("-0")}
        assert node not in live
        assert charged(job) == {"infrastructure": 1, "preemption": 1}
    finally:
        job.cluster.nodes.start_node(node)
    job.goes_on(3)
    job.stop()
    job.complete()
