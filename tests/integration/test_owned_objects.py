"""What a job owns beside its pods, where another object has that name already."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

RBAC = "rbac.authorization.k8s.io"
EVERYTHING = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
THEIRS: dict[str, dict[str, Any]] = {
    "serviceaccount/job-elasticjob": {"apiVersion": "v1", "kind": "ServiceAccount"},
    "role/job-elasticjob": {"apiVersion": f"{RBAC}/v1", "kind": "Role", "rules": [EVERYTHING]},
    "rolebinding/job-elasticjob": {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "job-elasticjob"},
        "subjects": [{"kind": "ServiceAccount", "name": "default"}],
    },
    "networkpolicy/job-elasticjob": {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {"podSelector": {}, "ingress": [{}]},
    },
    "lease/job-round": {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "spec": {"holderIdentity": "a-runner"},
    },
}
LEFT_ALONE = "is not owned by this job"


def find(job: PlayedJob, name: str) -> dict[str, Any]:
    """The object KIND/NAME, {} if there is none."""
    answer = job.cluster.kubectl("-n", job.namespace, "get", name, "-o", "json", "--ignore-not-found")
    found: dict[str, Any] = json.loads(answer.stdout) if answer.stdout.strip() else {}
    return found


# shows: another object has the name of the job's ServiceAccount, Role, RoleBinding, ...
# shows: it changes or deletes what is not the job's
def test_what_others_have_called_so_is_left_alone(job: PlayedJob) -> None:
    """Neither written over nor taken over; the job waits for the names, and says so."""
    for name, body in THEIRS.items():
        named = {**body, "metadata": {"name": name.partition("/")[2]}}
        job.cluster.kubectl("-n", job.namespace, "create", "-f", "-", input=json.dumps(named))
    before = {name: find(job, name) for name in THEIRS}
    job.apply()
    # Of the three that are rights, the first.
    for kind in ("ServiceAccount", "NetworkPolicy", "Lease"):
        job.wait_for(partial(says, job, kind), f"Training says it of {kind}")
    assert {name: find(job, name) for name in THEIRS} == before
    assert not job.pods()

    # Nor are they removed with the job.
    job.delete()
    assert {name: find(job, name) for name in THEIRS} == before

    # When they are out of the way, the job goes on.
    job.apply()
    job.wait_for(partial(says, job, "Lease"), "Training says it of the new job's, too")
    for name in THEIRS:
        job.cluster.kubectl("-n", job.namespace, "delete", name)
    # It tries later and later, and at once when the job is changed.
    job.cluster.kubectl("-n", job.namespace, "annotate", "elasticjob", "job", "names=free")
    job.runs("job-0-0", "job-1-0")
    for name in THEIRS:
        assert find(job, name)["metadata"]["ownerReferences"][0]["uid"] == job.get()["metadata"]["uid"]
    job.wait_for(lambda: LEFT_ALONE not in job.condition("Training")["message"], "nothing is said of them")


def says(job: PlayedJob, kind: str) -> bool:
    """Whether Training names the object of that kind as not the job's."""
    name = "job-round" if kind == "Lease" else "job-elasticjob"
    sentence = f"{kind} {name} already exists in namespace {job.namespace} and {LEFT_ALONE}"
    return sentence in job.condition("Training").get("message", "")
