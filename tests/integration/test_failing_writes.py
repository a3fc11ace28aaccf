"""Writes that keep failing hold up nothing but themselves: with the real operator and API server, and with
admission webhooks that are down or hang."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

SOON = {"lastCallTimeoutSeconds": 1, "rejoinTimeoutSeconds": 5, "initialLastCallTimeoutSeconds": 5}


@dataclass(frozen=True)
class Writes:
    """What a webhook is for. ``probe`` is such a write, as kubectl's words, with its standard input."""

    group: str
    resource: str
    operation: str
    probe: tuple[str, ...]
    body: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


PODS = Writes(
    "",
    "pods",
    "CREATE",
    ("create", "-f", "-"),
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    },
)
ROLES = Writes(
    "rbac.authorization.k8s.io", "roles", "*", ("create", "role", "probe", "--verb=get", "--resource=pods")
)
STATUS = Writes(
    "elasticjob.dev",
    "elasticjobs/status",
    "UPDATE",
    ("patch", "elasticjob", "job", "--subresource=status", "--type=merge", '-p={"status":{"restarts":99}}'),
    labels={"bad": "yes"},
)


@contextmanager
def failing(job: PlayedJob, what: Writes, hangs: bool = False) -> Iterator[None]:
    """A webhook for these writes in the job's namespace: no server listens where it should be, or none
    answers."""
    name = f"broken-{job.namespace}"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if hangs:
            listener.listen(1)
        webhook = {
            "name": "broken.elasticjob.dev",
            "clientConfig": {"url": f"https://127.0.0.1:{listener.getsockname()[1]}/"},
            "rules": [
                {
                    "apiGroups": [what.group],
                    "apiVersions": ["*"],
                    "operations": [what.operation],
                    "resources": [what.resource],
                }
            ],
            "objectSelector": {"matchLabels": what.labels},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": job.namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 30 if hangs else 5,
            "admissionReviewVersions": ["v1"],
        }
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
        job.cluster.kubectl("apply", "-f", "-", input=json.dumps(configuration))
        try:
            wait_for(lambda: not accepted(job, what), 30, "the webhook is asked")
            yield
        finally:
            job.cluster.kubectl("delete", "validatingwebhookconfiguration", name)


def accepted(job: PlayedJob, what: Writes) -> bool:
    """Whether the API server takes such a write."""
    tried = job.cluster.kubectl(
        *("-n", job.namespace, *what.probe, "--dry-run=server", "--request-timeout=2s"),
        input=json.dumps(what.body),
        check=False,
    )
    return tried.returncode == 0


def warned(job: PlayedJob, reason: str, words: str) -> None:
    told = f"an Event {reason} says {words!r}"
    job.wait_for(lambda: any(words in message for message in job.events(reason)), told)


def train(job: PlayedJob, **spec: Any) -> None:
    """Three that are in round 1; two are enough."""
    job.apply(replicas=3, minReplicas=2, rendezvous=SOON, **spec)
    job.runs("job-0-0", "job-1-0", "job-2-0")
    job.join("job-0-0", "job-1-0", "job-2-0")
    job.round(1)


@pytest.mark.parametrize("hangs", [False, True], ids=["down", "hangs"])
# shows: the API server rejects pods (quota, admission, a webhook that is down or hangs, 429, ...
def test_a_round_forms_without_the_pod_that_cannot_be_made(job: PlayedJob, hangs: bool) -> None:
    train(job)
    with failing(job, PODS, hangs):
        job.cluster.kubectl("-n", job.namespace, "delete", "pod", "job-2-0", "--wait=false")
        job.wait_for(lambda: job.status()["currentRound"]["phase"] == "Broken", "round 1 is broken")
        job.join("job-0-0", "job-1-0")
        assert job.round(2)["members"] == 2
        job.says("job-2-1: cannot be created: ")
        if not hangs:
            job.says('failed calling webhook "broken.elasticjob.dev"')
            job.says("(500)")
            warned(job, "PodRejected", "job-2-1")
    job.runs("job-0-0", "job-1-0", "job-2-1")
    job.wait_for(lambda: "cannot be" not in job.condition("Training")["message"], "nothing is said of it")


# shows: the API server rejects the job's ServiceAccount, Role, RoleBinding or NetworkPolicy
def test_a_round_forms_although_the_role_cannot_be_written(job: PlayedJob) -> None:
    """A pod that could write no Lease is not made: it would end, and be charged."""
    train(job)
    with failing(job, ROLES):
        job.cluster.kubectl("-n", job.namespace, "delete", "pod", "job-2-0", "--wait=false")
        job.wait_for(lambda: job.status()["currentRound"]["phase"] == "Broken", "round 1 is broken")
        job.join("job-0-0", "job-1-0")
        assert job.round(2)["members"] == 2
        job.says("the pods' ServiceAccount, Role and RoleBinding cannot be written: ")
        warned(job, "WriteFailed", "the pods' ServiceAccount, Role and RoleBinding cannot be written")
        assert "job-2-1" not in job.pods()
    job.runs("job-0-0", "job-1-0", "job-2-1")


# shows: the API server rejects the job's status
def test_a_status_that_cannot_be_written_holds_up_its_job_alone(job: PlayedJob, installed: Cluster) -> None:
    other = PlayedJob(installed, job.namespace, "other")
    train(job)
    job.cluster.kubectl("-n", job.namespace, "label", "elasticjob", "job", "bad=yes")
    with failing(job, STATUS):
        job.cluster.kubectl("-n", job.namespace, "delete", "pod", "job-2-0", "--wait=false")
        warned(job, "WriteFailed", "the status cannot be written: ")
        job.join("job-0-0", "job-1-0")
        other.apply(replicas=1)
        other.runs("other-0-0")
        other.join("other-0-0")
        other.round(1)
        assert job.status()["currentRound"]["number"] == 1
        lease = job.cluster.read(f"/apis/coordination.k8s.io/v1/namespaces/{job.namespace}/leases/job-round")
        record = json.loads(lease["metadata"]["annotations"]["elasticjob.dev/round"])
        assert (record["round"], record["phase"]) == (1, "Active"), "nothing is projected that is not written"
    assert job.round(2)["members"] == 2
