"""The operator is killed at the worst moments: training goes on, and the next one resumes from the status."""

# shows: the operator dies, at any moment

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests.e2e.job import SCRIPTS, JobRun, Operator

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def test_killed_in_the_middle_of_a_round(job: JobRun, operator: Operator) -> None:
    """I5: neither its loss nor its return breaks the round; what it missed it finds."""
    job.apply()
    job.training(1, members=2)
    operator.kill()
    job.goes_on(1)
    operator.restart()
    job.goes_on(1)
    operator.kill()
    job.kill_pod("job-1-0")
    wait_for(
        lambda: job.pods()["job-1-0"]["status"]["phase"] == "Failed", 60, "the pod has failed", interval=0.1
    )
    operator.restart()
    job.training(2, members=2)
    job.stop()
    job.complete()
    assert [r["cause"] for r in job.rounds()] == ["Started", "PodLost"]
    assert job.status()["restarts"] == 1


@pytest.mark.slow
# shows: several agents report one failure, and the operator dies between any two writes
def test_killed_between_two_rounds(job: JobRun, operator: Operator) -> None:
    """I7: the charge is neither lost nor made twice."""
    job.apply()
    job.training(1, members=2)
    job.kill_pod("job-0-0")
    job.wait_for(lambda: job.round()["phase"] == "Broken", "the round is broken")
    operator.kill()
    operator.restart()
    job.training(2, members=2)
    job.stop()
    job.complete()
    charges = {a["name"]: [c["round"] for c in a.get("charges", [])] for a in job.status()["accounts"]}
    assert charges == {"application": [], "infrastructure": [1], "preemption": [], "scaling": []}


@pytest.mark.slow
def test_killed_between_status_and_round_lease(job: JobRun, operator: Operator, installed: Cluster) -> None:
    """I1: the round that stands in the status is projected by the next operator, with its nonce."""
    gate = job.folder / "go"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done; exec torchrun {SCRIPTS / 'steps.py'} {job.folder}"
    job.apply(["sh", "-c", wait])
    job.wait_for(lambda: lease(job), "the round Lease")
    with refused_writes(installed, job.namespace, "job-round"):
        gate.touch()
        job.wait_for(lambda: job.round().get("number") == 1, "round 1 in the status")
        promised = job.status()["internal"]["round"]["nonce"]
        operator.kill()
        assert record(job)["round"] == 0, "the Lease was not written"
    operator.restart()
    job.training(1, members=2)
    assert job.status()["internal"]["round"]["nonce"] == promised == record(job)["nonce"]
    assert [r["number"] for r in job.rounds()] == [1]
    job.stop()
    job.complete()


@pytest.mark.slow
def test_the_leader_of_two_dies(job: JobRun, operator: Operator, installed: Cluster, tmp_path: Path) -> None:
    """I9: an operator that takes over has looked on for a while, and judges no pod by what was before."""
    operator.kill()
    flags = (
        *("--leader-elect", f"--leader-elect-resource-namespace={job.namespace}"),
        *("--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s"),
        "--leader-elect-retry-period=400ms",
    )
    pair = [Operator(installed, job.namespace, tmp_path / f"{n}.log", flags=flags) for n in range(2)]

    def leader() -> Operator | None:
        live = [one for one in pair if one.process.poll() is None]
        return next((one for one in live if "became the leading operator as" in one.log.read_text()), None)

    try:
        job.apply()
        job.training(1, members=2)
        first = wait_for(leader, 60, "one of them leads")
        first.kill()
        job.kill_pod("job-1-0")
        job.training(2, members=2)
        second = wait_for(leader, 60, "the other leads")
        assert second is not first
        job.goes_on(2)
        job.stop()
        job.complete()
        assert [r["cause"] for r in job.rounds()] == ["Started", "PodLost"]
        assert job.status()["restarts"] == 1
    finally:
        for one in pair:
            one.stop()
            print(one.log.read_text()[-4000:])


# shows: the job is deleted and created again
def test_deleted_and_created_again_under_the_same_name(job: JobRun) -> None:
    job.apply()
    job.training(1, members=2)
    old = job.get()["metadata"]["uid"]
    job.delete("--wait=true")
    again = JobRun(job.cluster, job.namespace, job.folder.parent / "again")
    again.apply()
    again.training(1, members=2)
    assert again.get()["metadata"]["uid"] != old
    assert record(again)["jobUID"] == again.get()["metadata"]["uid"]
    uids = {p["metadata"]["ownerReferences"][0]["uid"] for p in again.pods().values()}
    members = {p["podName"] for p in again.status()["participants"]}
    assert len(members) == 2
    assert again.get()["metadata"]["uid"] in uids
    again.stop()
    again.complete()


def lease(job: JobRun) -> bool:
    found = job.cluster.kubectl("-n", job.namespace, "get", "lease", "job-round", check=False)
    return found.returncode == 0


def record(job: JobRun) -> dict[str, object]:
    """The round record, as participants read it."""
    answer = job.cluster.kubectl("-n", job.namespace, "get", "lease", "job-round", "-o", "json")
    found: dict[str, object] = json.loads(
        json.loads(answer.stdout)["metadata"]["annotations"]["elasticjob.dev/round"]
    )
    return found


@contextmanager
def refused_writes(cluster: Cluster, namespace: str, name: str) -> Iterator[None]:
    """While in force, an admission policy refuses every update of one Lease."""
    policy_name = f"refuse-{namespace}"
    condition = f"object.metadata.name == '{name}' && object.metadata.namespace == '{namespace}'"
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["leases"],
    }
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy_name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "this-lease", "expression": condition}],
            "validations": [{"expression": "false", "message": "refused by the test"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": policy_name},
        "spec": {"policyName": policy_name, "validationActions": ["Deny"]},
    }

    def in_force() -> bool:
        tried = ["annotate", "lease", name, "try=1", "--overwrite", "--dry-run=server"]
        return "refused by the test" in cluster.kubectl("-n", namespace, *tried, check=False).stderr

    items = {"apiVersion": "v1", "kind": "List", "items": [policy, binding]}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(items))
    try:
        wait_for(in_force, 60, "the policy is in force", interval=0.1)
        yield
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            cluster.kubectl("delete", kind, policy_name)
    wait_for(lambda: not in_force(), 60, "the policy is no longer in force", interval=0.1)
