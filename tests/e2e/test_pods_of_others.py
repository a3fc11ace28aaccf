"""Pods that the operator did not make: real Jobs of kube-controller-manager, bare pods, a StatefulSet.

The ElasticJob has no template: it serves rendezvous alone. Each pod reaches the API server with its own
token, and has no right but those that the operator gives it.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.agent import pod_lock
from elasticjob.agent.joining import RBAC_SECONDS
from tests.e2e.job import ROOT, Operator
from tests.e2e.others import OthersRun

EXAMPLE = ROOT / "examples" / "indexed-job"

ONE_NODE = {"kubernetes.io/hostname": "node-a"}
"""Of three pods on two nodes, the two on one node have ranks next to each other."""

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


@pytest.fixture
def others(installed: Cluster, namespace: str, tmp_path: Path, operator: Operator) -> Iterator[OthersRun]:
    """A job not yet applied; it is gone, with all pods, before the next test begins."""
    del operator
    run = OthersRun(installed, namespace, tmp_path / "run")
    yield run
    for kind in ("elasticjobs", "jobs", "statefulsets"):
        installed.kubectl("-n", namespace, "delete", kind, "--all", "--timeout=60s", check=False)
    installed.kubectl("-n", namespace, "delete", "pods", "--all", "--force", "--timeout=60s", check=False)


@pytest.fixture
def own_lease_only(installed: Cluster) -> Iterator[None]:
    """The documented admission policy, in force for one test."""
    installed.kubectl("apply", "-f", str(EXAMPLE / "own-lease-only.yaml"))
    yield
    installed.kubectl("delete", "-f", str(EXAMPLE / "own-lease-only.yaml"))


@pytest.mark.slow
@pytest.mark.usefixtures("own_lease_only")
def test_the_example_of_an_indexed_job_trains_to_the_end(others: OthersRun, tmp_path: Path) -> None:
    rendered = others.cluster.kubectl("kustomize", str(ROOT / "examples" / "indexed-job-devcluster")).stdout
    manifests = list(yaml.safe_load_all(rendered))
    batch = next(m for m in manifests if m["kind"] == "Job")
    pod = batch["spec"]["template"]["spec"]
    pod["nodeSelector"] = ONE_NODE
    volume = next(v for v in pod["volumes"] if v["name"] == "checkpoints")
    volume["hostPath"]["path"] = str(tmp_path / "checkpoints")  # not where the user's own run has its files
    pod["containers"][0]["args"] += ["--epochs=3", "--width=64", "--depth=2"]
    others.name = batch["metadata"]["name"]
    for manifest in manifests:
        others.create(manifest)
    others.complete()
    others.batch_job_is("Complete")
    assert [(r["number"], r["cause"]) for r in others.rounds()] == [(1, "Started")]
    assert others.ranks_by_index() == {0: 0, 1: 1, 2: 2}
    result = json.loads((tmp_path / "checkpoints" / "indexed" / "result.json").read_text())
    assert (result["world_size"], result["steps"], result["resumed_from_step"]) == (3, 69, 0)


@pytest.mark.slow
# shows: a pod of a Job dies (no template)
def test_the_job_replaces_a_pod_and_the_new_one_takes_the_rank_of_its_index(others: OthersRun) -> None:
    others.serve(3)
    others.indexed(3, "Never", nodeSelector=ONE_NODE)
    others.training(1, members=3)
    assert others.ranks_by_index() == {0: 0, 1: 1, 2: 2}
    assert others.ranks_in_steps(1) == others.ranks(), "what the workers have is what the status says"
    victim = others.pod_of_index(1)
    others.kill_pod(victim)
    others.training(2, members=3)
    replacement = others.pod_of_index(1)
    assert replacement != victim
    assert others.ranks_by_index() == {0: 0, 1: 1, 2: 2}
    assert others.ranks_in_steps(2)[replacement] == 1
    second = others.rounds()[1]
    assert (second["cause"], second["account"]) == ("PodLost", "infrastructure")
    assert f"{replacement} took over group rank 1" in second["message"]
    assert others.status()["restarts"] == 1, "one root failure is charged once"
    others.stop()
    others.complete()
    others.batch_job_is("Complete")


@pytest.mark.slow
def test_a_container_restarts_in_place_then_the_job_is_made_again(others: OthersRun) -> None:
    """restartPolicy OnFailure: the same pod comes back, a new participant. Then the Job goes and comes again,
    and the ElasticJob waits for it."""
    others.serve(2)
    others.indexed(2, "OnFailure")
    others.training(1, members=2)
    victim = others.pod_of_index(1)
    others.kill_pod(victim)
    others.training(2, members=2)
    assert others.pod_of_index(1) == victim, "no pod was replaced"
    assert others.pods()[victim]["status"]["containerStatuses"][0]["restartCount"] == 1
    assert others.ranks_by_index() == {0: 0, 1: 1}
    second = others.rounds()[1]
    assert second["cause"] in ("PodLost", "PodRestarted"), "by the pod's status or by its Lease"
    assert second["account"] == "infrastructure"
    assert others.status()["restarts"] == 1

    others.cluster.kubectl("-n", others.namespace, "delete", "job", others.name, "--timeout=60s")
    others.wait_for(lambda: not others.pods(), "the pods of the deleted Job are gone")
    others.wait_for(
        lambda: others.condition("Training")["reason"] == "WaitingForPods", "the ElasticJob waits for pods"
    )
    assert (
        "no pod is starting; 0 of 2 replicas have joined, at least 2 required"
        in (others.condition("Training")["message"])
    )
    others.indexed(2, "OnFailure")
    others.training(3, members=2)
    assert others.ranks_by_index() == {0: 0, 1: 1}
    third = others.rounds()[2]
    assert (third["cause"], third["account"]) == ("PodDeleted", "preemption")
    others.stop()
    others.complete()
    others.batch_job_is("Complete")


@pytest.mark.slow
# shows: gives a pod the label of a job without template
def test_bare_pods_rank_by_name_and_strangers_disturb_nobody(
    others: OthersRun, cluster: Cluster, tmp_path: Path
) -> None:
    others.serve(2)
    elsewhere = OthersRun(others.cluster, f"{others.namespace[:55]}-other", tmp_path / "run")
    neighbour = OthersRun(others.cluster, others.namespace, tmp_path / "run", "neighbour")
    neighbour.serve(2)
    cluster.kubectl("create", "namespace", elsewhere.namespace)
    try:
        wait_for(
            lambda: (
                cluster.kubectl("-n", elsewhere.namespace, "get", "sa/default", check=False).returncode == 0
            ),
            60,
            "the namespace has its service account",
        )
        # The same label in another namespace, and the way to our job.
        to_us = [w.replace("=job", f"={others.namespace}/job") for w in elsewhere.torchrun()]
        elsewhere.pod("stranger", to_us)
        # The label of another job, and the way to ours: its Lease may be written, and counts for no job.
        neighbour.pod("lost", others.torchrun())
        others.pod("b")
        others.pod("a")
        others.training(1, members=2)
        assert others.ranks() == {"a": 0, "b": 1}
        assert others.ranks_in_steps(1) == {"a": 0, "b": 1}
        elsewhere.prints("stranger", "RendezvousStateError: the API server has denied access for 1")
        others.prints("lost", "waiting for round 2")
        others.goes_on(1)
    finally:
        cluster.kubectl("delete", "namespace", elsewhere.namespace, "--wait=false")
    assert others.round()["number"] == 1
    assert {p["podName"] for p in others.status()["participants"]} == {"a", "b"}
    assert neighbour.status()["participants"] == []
    others.stop()
    others.complete()


# shows: belongs to another job
def test_rights_follow_the_pods_and_reach_no_further(others: OthersRun) -> None:
    """The pods of a Job have random names: the Role names those that there are."""
    others.serve(2)
    others.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}})
    others.indexed(2, "Never", ["sleep", "600"], serviceAccountName="trainer")
    others.wait_for(lambda: len(running(others)) == 2, "the pods run")
    zero, one = others.pod_of_index(0), others.pod_of_index(1)
    uid = others.pods()[zero]["metadata"]["uid"]
    pod = others.client(zero)
    may_announce(others, pod, zero, uid)
    round_lease = others.leases("job-round")
    assert pod.request("GET", round_lease).ok
    assert pod.request("GET", others.leases(query="fieldSelector=metadata.name%3Djob-round")).ok
    for method, path in (
        ("PATCH", round_lease),
        ("DELETE", round_lease),
        ("DELETE", others.leases(zero)),
        ("GET", others.leases()),
        ("GET", others.leases("somebody")),
        ("GET", f"/api/v1/namespaces/{others.namespace}/pods"),
        ("GET", f"/apis/elasticjob.dev/v1alpha1/namespaces/{others.namespace}/elasticjobs/job"),
        ("GET", "/apis/coordination.k8s.io/v1/leases"),
    ):
        body = {"metadata": {"labels": {"x": "y"}}} if method == "PATCH" else None
        answer = pod.request(method, path, body, content_type="application/merge-patch+json")
        assert answer.status == 403, f"{method} {path}: {answer.status} {answer.text}"
    assert others.announce(pod, "somebody", uid).status == 403

    neighbour = OthersRun(others.cluster, others.namespace, others.folder, "another")
    neighbour.pod("bystander", ["sleep", "600"])
    refused = neighbour.client("bystander").request("GET", round_lease)
    assert refused.status == 403, "a pod that is not of the job, under another service account"

    others.cluster.kubectl("-n", others.namespace, "delete", "pod", zero, "--force", "--timeout=60s")
    others.wait_for(lambda: zero not in others.pods() and len(running(others)) == 2, "the pod is replaced")
    new = others.pod_of_index(0)
    may_announce(others, others.client(new), new, others.pods()[new]["metadata"]["uid"])

    def named() -> set[str]:
        role = others.cluster.kubectl("-n", others.namespace, "get", "role", "job-elasticjob", "-o", "json")
        return {name for rule in json.loads(role.stdout)["rules"] for name in rule["resourceNames"]}

    wait_for(
        lambda: named() == {"job-round", "job.members-round", one, new},
        30,
        "the Role names the pods that there are",
        0.2,
    )


def running(others: OthersRun) -> list[str]:
    """The live pods of the job that run."""
    return [
        name
        for name, pod in others.pods().items()
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def may_announce(others: OthersRun, client: ApiClient, name: str, uid: str) -> None:
    """Wait until the operator has seen the pod, and the authorizer the Role."""
    wait_for(lambda: others.announce(client, name, uid).ok, 30, f"{name} may write its Lease", 0.2)


@pytest.mark.slow
# shows: a second torchrun is started in a pod (`kubectl exec`, or by a script)
def test_a_second_torchrun_in_a_pod_is_refused_and_the_round_goes_on(others: OthersRun) -> None:
    """As ``kubectl exec`` starts one: in the same container, with the same environment. What its message
    advises works."""
    torchrun, _, _, _, script, folder = others.torchrun()
    agent = f"{torchrun} {script} {folder}"
    gate = others.folder / "second"
    aside = f"{pod_lock.ASIDE} --no-python true"
    variables = f"PET_RDZV_BACKEND=k8s PET_RDZV_ENDPOINT={others.name} PET_NNODES=1:4 PET_MAX_RESTARTS=1000"
    both = (
        f"export {variables}; {agent} & while [ ! -e {gate} ]; do sleep 0.05; done; "
        f"{agent}; echo the second has ended with $?; {aside}; echo one aside has ended with $?; wait"
    )
    others.serve(1)
    others.pod("twice", ["sh", "-c", both])
    others.training(1, members=1)
    gate.touch()
    others.prints("twice", "SecondAgent: process ")
    others.prints("twice", "the second has ended with 1")
    others.prints("twice", "one aside has ended with 0")
    others.goes_on(1)
    others.stop()
    others.complete()
    assert [r["number"] for r in others.rounds()] == [1]


@pytest.mark.slow
def test_pods_that_start_while_the_operator_is_away_wait_for_it(
    others: OthersRun, operator: Operator
) -> None:
    """For longer than a cache of rights may lag: one whose account may already read the round, and one of a
    job that has no Role at all."""
    others.serve(2)
    others.pod("early")
    others.wait_for(lambda: others.status().get("participants"), "the first has joined")
    operator.kill()
    others.pod("late")
    new = OthersRun(others.cluster, others.namespace, others.folder.parent / "new", "new")
    new.serve(1)
    new.pod("alone")
    for run, pod in ((others, "late"), (new, "alone")):
        run.prints(pod, "for the operator to grant this pod its rights")
    refused = time.monotonic()
    wait_for(lambda: time.monotonic() - refused > RBAC_SECONDS, 60, "longer than a cache may lag")
    assert set(running(others)) == {"early", "late"}
    assert running(new) == ["alone"]
    operator.restart()
    others.training(1, members=2)
    new.training(1, members=1)
    for run in (others, new):
        run.stop()
        run.complete()


def test_a_leader_s_limit_of_open_files_that_will_not_do_is_told(others: OthersRun) -> None:
    """Of the job's size, not of the round's: one of 200 trains."""
    worker = ["sh", "-c", 'until [ -e "$0/stop" ]; do sleep 0.1; done', str(others.folder)]
    torchrun = [*others.torchrun()[:-2], "--nproc-per-node=2", "--no-python", *worker]
    others.serve(200, minReplicas=1)
    others.pod("only", ["sh", "-c", f"ulimit -n 800; exec {shlex.join(torchrun)}"])
    few = (
        "the leader only may open 800 files, but 200 members with 400 workers need about 864: raise the "
        "container's hard limit (LimitNOFILE of the container runtime, or ulimit -n)"
    )
    others.wait_for(lambda: few in others.condition("Training").get("message", ""), "the condition says so")
    others.wait_for(lambda: others.events("TooFewOpenFiles") == [few], "and an Event, once")
    assert (others.round()["members"], others.round()["worldSize"]) == (1, 2), "the round goes on"
    others.stop()
    others.complete()


@pytest.mark.slow
def test_a_member_is_lost_after_others_have_succeeded(others: OthersRun) -> None:
    """Their pods are not ours to replace: the job fails, and every later log says why."""
    others.serve(2)
    others.indexed(2, "OnFailure", others.torchrun("late.py"))
    others.wait_for(
        lambda: "1 member succeeded" in others.condition("Training").get("message", ""),
        "rank 0 has succeeded",
    )
    victim = others.pod_of_index(1)
    others.kill_pod(victim)
    failed = others.failed()
    assert failed["reason"] == "MemberLostAfterSuccess"
    assert victim in failed["message"]
    assert (
        "other members had already succeeded, and a job without template cannot replace pods"
        in failed["message"]
    )
    others.prints(victim, f"RendezvousClosedError: the job has failed: {victim} (group rank 1)")


@pytest.mark.slow
def test_too_few_pods_are_said_and_join_timeout_ends_the_wait(others: OthersRun) -> None:
    others.serve(2)
    others.pod("only")
    waits = "no other pod is starting; 1 of 2 replicas has joined, at least 2 required"
    others.wait_for(lambda: others.condition("Training").get("message") == waits, "the status says so")
    listed = others.cluster.kubectl("-n", others.namespace, "get", "ej", others.name).stdout
    assert "WaitingForPods" in listed
    others.prints("only", f"waiting for round 1: {waits}")
    others.serve(2, failurePolicy={"idleDeadlineSeconds": 2})
    failed = others.failed()
    assert (failed["reason"], failed["message"]) == (
        "IdleDeadlineExceeded",
        f"pods held nodes for 2 s (idleDeadlineSeconds) without a round: {waits}",
    )
    others.prints("only", f"RendezvousClosedError: the job has failed: {failed['message']}")


@pytest.mark.slow
def test_the_elasticjob_is_deleted_under_its_pods(others: OthersRun) -> None:
    """I5: what runs goes on. Who needs a new round is told after ten seconds what is missing."""
    others.serve(2)
    for name in ("a", "b"):
        others.pod(name)
    others.training(1, members=2)
    others.delete("--timeout=60s")
    wait_for(
        lambda: not others.cluster.kubectl("-n", others.namespace, "get", "roles", "-o", "name").stdout,
        60,
        "the Role is gone with the ElasticJob",
        0.2,
    )
    before = len(others.steps(1))
    wait_for(lambda: len(others.steps(1)) > before + 20, 60, "training goes on")
    others.kill_worker("a")
    for name in ("a", "b"):
        others.prints(name, "RendezvousStateError: ")
        # Behind the failure of its worker, where that could not be reported.
        others.prints(name, "the API server has denied access for 1")
        others.prints(name, f"that the ElasticJob exists (kubectl -n {others.namespace} get ej job)")


@pytest.mark.slow
def test_pods_of_a_stateful_set_rank_by_ordinal(others: OthersRun) -> None:
    others.serve(2)
    spec = {
        "replicas": 2,
        "serviceName": "job",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"elasticjob.dev/job-name": others.name}},
        "template": others.template(),
    }
    others.create({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "set"}, "spec": spec})
    others.training(1, members=2)
    assert others.ranks() == {"set-0": 0, "set-1": 1}
    assert [p["slot"] for p in others.status()["participants"]] == [0, 1]
    others.kill_pod("set-0")
    others.training(2, members=2)
    assert others.ranks() == {"set-0": 0, "set-1": 1}
    others.stop()
    others.complete()
    # A StatefulSet starts ended containers again: what comes back is told that all is done.
    others.prints("set-0", "the job is complete: all 2 members of round 2 succeeded")
