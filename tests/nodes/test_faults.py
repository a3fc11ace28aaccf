"""What a running job meets on nodes: each fault with its cause and sentence, and how training goes on.

On real nodes, and on the stand-in if it can have the same fault: the table at the end compares them.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

from elasticjob.contract.text import node_words
from tests.nodes.job import BOTH, DigitsJob, NodesJob
from tests.nodes.table import Recovery

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]

LIMITED = {"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "512Mi"}}}
SOON = {"terminationGracePeriodSeconds": 10}
"""Of pods with processes that can't or don't heed SIGTERM: the operator would give them more."""

Table = Callable[[Recovery], None]


# Processes


@BOTH
def test_torchrun_is_killed(job: DigitsJob, table: Table) -> None:
    struck = job.strike(job.pids(job.member(1))[0], signal.SIGKILL)
    found = job.recovered("kill -9 of torchrun", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("PodLost", "infrastructure")
    assert "its container ended with SIGKILL (exit code 137)" in found.message
    assert found.detected_milliseconds is not None


@BOTH
def test_a_worker_is_killed(job: DigitsJob, table: Table) -> None:
    pods = set(job.pods())
    struck = job.strike(job.worker(job.member(1)), signal.SIGKILL)
    found = job.recovered("kill -9 of a worker", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("WorkerFailed", "application")
    assert "killed by SIGKILL" in found.message
    assert set(job.pods()) == pods, "no pod was replaced"


def test_a_worker_is_stopped_for_a_while(job: DigitsJob) -> None:
    """SIGSTOP of a worker, shorter than any limit: nothing is lost."""
    worker = job.worker(job.member(1))
    job.strike(worker, signal.SIGSTOP)
    time.sleep(5)  # the fault itself
    job.strike(worker, signal.SIGCONT)
    assert job.goes_on() == 1


@BOTH
def test_a_pod_is_stopped(new_job: Callable[[], DigitsJob], table: Table) -> None:
    """SIGSTOP of all processes of a member: it is alive for Kubernetes, and silent."""
    job = new_job()
    job.apply(pod=SOON)
    job.training(members=2)
    for pid in reversed(job.pids(job.member(1))):
        struck = job.strike(pid, signal.SIGSTOP)
    found = job.recovered("SIGSTOP of a pod", struck)
    table(found)
    assert (found.cause, found.account) == ("Unreachable", "infrastructure")
    assert "was unreachable: no heartbeat for 3" in found.message
    assert ", as the leader " in found.message
    assert "it accepts connections but sends no heartbeat" in found.message


# Pods


@BOTH
def test_a_pod_is_deleted(job: DigitsJob, table: Table) -> None:
    job.takes_part()
    struck = time.time()
    job.kubectl("delete", "pod", job.member(0), "--wait=false")
    found = job.recovered("kubectl delete pod", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("PodDeleted", "preemption")
    assert "was deleted (" in found.message
    assert job.end_of(1)["drain"] == "Stopped", "the preStop hook kept the workers alive"


@BOTH
def test_a_container_is_out_of_memory(new_job: Callable[[], DigitsJob], table: Table) -> None:
    """The kernel kills torchrun, the container's first process."""
    job = new_job()
    job.apply(container=LIMITED)
    job.training(members=2)
    pod = job.member(1)
    struck = job.out_of_memory(pod, job.pids(pod)[0])
    found = job.recovered("container out of memory", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("OutOfMemory", "application")
    assert "its container was killed: out of memory (OOMKilled" in found.message


@BOTH
def test_a_worker_is_out_of_memory(new_job: Callable[[], DigitsJob], table: Table) -> None:
    """The kernel kills a worker; the container lives, and the kubelet marks its later end as OOMKilled."""
    job = new_job()
    job.apply(container=LIMITED)
    job.training(members=2)
    pod = job.member(1)
    struck = job.out_of_memory(pod, job.worker(pod))
    found = job.recovered("worker out of memory", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("WorkerFailed", "application")
    assert "out of memory" in found.message
    assert not job.has_ended(pod)
    # A later end of another kind is told as what it is, whatever mark the kubelet keeps.
    struck = job.strike(job.pids(pod)[0], signal.SIGKILL)
    later = job.recovered("kill -9 after a worker was out of memory", struck, found.round, members=2)
    table(later)
    assert (later.cause, later.account) == ("PodLost", "infrastructure")
    assert "its container ended with SIGKILL (exit code 137)" in later.message


@BOTH
def test_a_pod_uses_more_disk_than_it_may(new_job: Callable[[], DigitsJob], table: Table) -> None:
    """The kubelet evicts the pod: not because its node is short of anything."""
    job = new_job()
    job.apply(container={"resources": {"limits": {"ephemeral-storage": "20Mi"}}})
    job.training(members=2)
    pod = job.member(1)
    struck = job.fill_disk(pod)
    found = job.recovered("more than the limit of ephemeral storage", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("PodFailed", "application")
    assert "ephemeral" in found.message


@BOTH
def test_a_node_is_short_of_disk(job: DigitsJob, table: Table) -> None:
    """The kubelet evicts the pod that uses most: the node's fault, and none of the script's."""
    pod = job.member(1)
    node = job.node_of(pod)
    with job.short_of_disk(pod) as struck:
        job.wait_for(lambda: job.has_ended(pod), "it is evicted")
    found = job.recovered("the node is short of disk", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("NodePressure", "infrastructure")
    words = "which is short of resources: The node was low on resource: ephemeral-storage"
    assert f"{pod} (group rank 1) was evicted from {node_words(node)}, {words}" in found.message


# Sidecars

SIDECAR = {"name": "logs", "image": "busybox:1.37", "command": ["sleep", "100000"]}
"""It ignores SIGTERM, as a first process does that handles no signal."""


@BOTH
def test_a_container_is_killed_beside_a_sidecar(new_job: Callable[[], DigitsJob], table: Table) -> None:
    """Another container of the pod lives on: the pod is deleted, and its resources are free."""
    job = new_job()
    job.apply(sidecars=[SIDECAR], pod=SOON)
    job.training(members=2)
    pod = job.member(1)
    struck = job.strike(job.pids(pod)[0], signal.SIGKILL)
    found = job.recovered("kill -9 of torchrun beside a sidecar", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("PodLost", "infrastructure")
    assert "its container ended with SIGKILL (exit code 137)" in found.message
    job.wait_for(lambda: pod not in job.pods(), "the pod is gone, sidecar and all")


def test_jobs_with_sidecars_complete(new_job: Callable[..., NodesJob]) -> None:
    """A plain container that never ends, and an init container that is restarted always."""
    plain, native = new_job("plain"), new_job("native")
    plain.apply(epochs=2, sidecars=[SIDECAR], pod=SOON)
    native.apply(epochs=2, pod={**SOON, "initContainers": [{**SIDECAR, "restartPolicy": "Always"}]})
    for job in (plain, native):
        job.complete()
        job.nothing_runs()
        job.trained_in_one_round()


# Nodes


def drain(job: DigitsJob, node: str, check: bool = True, seconds: int = 300) -> str:
    """kubectl drain, of the job's pods alone."""
    flags = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={seconds}s"]
    selector = f"--pod-selector=elasticjob.dev/job-name={job.name}"
    done = job.cluster.kubectl("drain", node, *flags, selector, check=check, timeout=seconds + 20)
    return str(done.stdout + done.stderr)


@BOTH
def test_a_node_is_drained(job: DigitsJob, table: Table) -> None:
    node = job.node_of(job.member(1))
    job.takes_part()
    struck = time.time()
    try:
        drain(job, node)
        found = job.recovered("kubectl drain", struck, members=2)
    finally:
        job.cluster.kubectl("uncordon", node)
    table(found)
    assert (found.cause, found.account) == ("Evicted", "preemption")
    assert "Eviction API: evicting" in found.message
    assert job.end_of(1)["drain"] == "Stopped", "no step was lost"


def test_a_node_is_drained_beside_a_disruption_budget(job: NodesJob) -> None:
    node = job.node_of(job.member(1))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": job.namespace},
        "spec": {
            "maxUnavailable": 0,
            "selector": {"matchLabels": {"elasticjob.dev/job-name": job.name}},
        },
    }
    job.create(budget)
    try:
        said = drain(job, node, check=False, seconds=15)
        assert "Cannot evict pod as it would violate the pod's disruption budget" in said
        assert job.goes_on() == 1
        job.kubectl("delete", "pdb", "all")
        struck = time.time()
        drain(job, node)
        found = job.recovered("kubectl drain once the budget is gone", struck, members=2)
        assert (found.cause, found.account) == ("Evicted", "preemption")
        assert "Eviction API: evicting" in found.message
    finally:
        job.cluster.kubectl("uncordon", node)


def test_a_kubelet_is_killed(job: NodesJob) -> None:
    """The node is not ready after a while; its pods train on, because they are heard."""
    name = job.node_of(job.member(1))
    node = job.cluster.nodes[name]
    node.kubelet.kill()
    job.wait_for(lambda: not job.is_ready(name), "the node is not ready")
    assert job.goes_on() == 1
    assert trains(job)
    node.kubelet.start()
    job.wait_for(lambda: job.is_ready(name), "the node is ready")
    assert job.goes_on() == 1
    assert trains(job)
    assert job.status().get("restarts", 0) == 0


def trains(job: DigitsJob) -> bool:
    """Whether the condition says that it trains."""
    said = job.condition("Training")
    return (said["status"], said["reason"]) == ("True", "Training")


@BOTH
def test_a_node_loses_its_power_and_comes_back(job: DigitsJob, table: Table) -> None:
    lost = job.member(1)
    node = job.node_of(lost)
    struck = job.power_off(node)
    try:
        found = job.recovered("a member's node loses its power", struck)
        table(found)
        # A node that is played is NotReady so soon that its loss may be known before the next step is made.
        causes = ("Unreachable",) if isinstance(job, NodesJob) else ("Unreachable", "NodeLost")
        assert found.cause in causes
        assert found.account == "infrastructure"
        assert re.search(rf"{lost}( on {node})? \(group rank 1\) ", found.message)
        unreachable = "was unreachable: " in found.message
        assert unreachable or f"was lost: {node_words(node)} is " in found.message
        job.wait_for(lambda: job.end_of(1)["cause"] == "NodeLost", "the charge moves to the node's loss")
        assert re.search(rf"{lost}( on {node})? \(group rank 1\) was lost", job.end_of(1)["message"])
        assert f"{node_words(node)} " in job.end_of(1)["message"]
    finally:
        job.power_on(node)
    job.wait_for(lambda: lost not in job.pods() or job.has_ended(lost), "the pod of the dead node has ended")
    rounds = {one["number"]: one["members"] for one in job.status()["roundHistory"]}
    if rounds[found.round] < 2:
        grown = job.recovered("a second pod has joined", time.time(), found.round, members=2)
        assert (grown.cause, grown.account) == ("ScaledUp", "scaling")
        assert "joined: growing from 1 to 2 members" in grown.message
    assert job.goes_on() > 1
