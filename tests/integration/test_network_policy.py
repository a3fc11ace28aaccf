"""A job's NetworkPolicy as it stands in the API server. Whether a network obeys it can't be tested here:
devcluster's pods are processes of one machine, and nothing enforces policies between them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devcluster.wait import wait_for
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

POLICIES = "networkpolicies.networking.k8s.io"
DEADLINE = 90.0


def policy(job: PlayedJob, name: str = "job-elasticjob") -> dict[str, Any]:
    """The policy of that name, {} if there is none."""
    answer = job.cluster.kubectl(
        "-n", job.namespace, "get", POLICIES, name, "-o", "json", "--ignore-not-found"
    )
    found: dict[str, Any] = json.loads(answer.stdout) if answer.stdout.strip() else {}
    return found


def comes(job: PlayedJob) -> dict[str, Any]:
    """Wait for the job's policy."""
    wait_for(lambda: policy(job), DEADLINE, "the policy is there", interval=0.1)
    return policy(job)


def goes(job: PlayedJob) -> None:
    """Wait until it is gone."""
    wait_for(lambda: not policy(job), DEADLINE, "the policy is gone", interval=0.1)


# shows: connects to another job's TCPStore, which has no authentication
def test_only_the_jobs_own_pods_may_connect_to_them(job: PlayedJob, operator: Operator) -> None:
    waits = {"nodeSelector": {"no": "node"}}
    job.apply(pod=waits)
    job.wait_for(lambda: len(job.pods()) == 2, "the pods are made")
    # Without waiting: it is there before the first pod.
    made = policy(job)
    pods = {"matchLabels": {"elasticjob.dev/job-name": "job"}}
    assert made["spec"] == {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
    }
    assert all(pods["matchLabels"].items() <= p["metadata"]["labels"].items() for p in job.pods().values())
    owner = made["metadata"]["ownerReferences"]
    assert [(o["kind"], o["name"], o["uid"]) for o in owner] == [
        ("ElasticJob", "job", job.get()["metadata"]["uid"])
    ]

    # A user's own policy for the same pods is left alone, and so is a change of the job's.
    opened = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "metrics"},
        "spec": {"podSelector": pods, "ingress": [{"ports": [{"port": 9090}]}]},
    }
    job.cluster.kubectl("-n", job.namespace, "apply", "-f", "-", input=json.dumps(opened))
    edited = json.dumps({"spec": {"ingress": [{}]}})
    job.cluster.kubectl(
        "-n", job.namespace, "patch", POLICIES, "job-elasticjob", "--type=merge", "-p", edited
    )
    job.patch(networkPolicy="None")
    goes(job)
    assert policy(job, "metrics")
    job.patch(networkPolicy="JobOnly")
    assert comes(job)["spec"] == made["spec"]
    job.cluster.kubectl(
        "-n", job.namespace, "patch", POLICIES, "job-elasticjob", "--type=merge", "-p", edited
    )
    operator.kill()
    operator.restart()
    wait_for(
        lambda: policy(job)["spec"] == made["spec"], DEADLINE, "a new operator restores it", interval=0.1
    )

    # One of that name that is not the job's stays, whatever the job wants.
    job.patch(networkPolicy="None")
    goes(job)
    job.cluster.kubectl(
        "-n",
        job.namespace,
        "apply",
        "-f",
        "-",
        input=json.dumps({**opened, "metadata": {"name": "job-elasticjob"}}),
    )
    operator.kill()
    operator.restart()
    job.patch(replicas=3)
    job.wait_for(lambda: len(job.pods()) == 3, "the new operator has made its first pass")
    assert policy(job)["spec"] == policy(job, "metrics")["spec"], "it is not ours to delete"

    # A job without template serves pods that others create.
    others = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "others"},
        "spec": {},
    }
    job.cluster.kubectl("-n", job.namespace, "apply", "-f", "-", input=json.dumps(others))
    beside = PlayedJob(job.cluster, job.namespace, "others")
    beside.reads("Training", "WaitingForPods")
    wait_for(
        lambda: (
            job.cluster.kubectl(
                "-n", job.namespace, "get", "role", "others-elasticjob", check=False
            ).returncode
            == 0
        ),
        DEADLINE,
        "the operator has given it rights",
        interval=0.1,
    )
    assert not policy(beside, "others-elasticjob")
