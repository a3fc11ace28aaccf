"""A PodDisruptionBudget and the pods of a job, with the real eviction API and disruption controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devcluster.cluster import Cluster
from elasticjob.contract.names import JOB_LABEL, MEMBER_CONDITION
from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def budget(job: PlayedJob) -> None:
    """As docs/operate/disruption-budgets.md has it: one pod at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {JOB_LABEL: job.name}}}
    made = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    job.kubectl("apply", "-f", "-", input=json.dumps(made))


def says(job: PlayedJob, **status: int) -> None:
    """Wait until the budget's status has these numbers.

    The disruption controller asks for the kinds of the API server every 30 s (its RESTMapper), and tries a
    budget of a kind that it does not know ever more rarely; a change of the budget makes it try at once.
    """
    path = f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets/{job.name}"

    def found() -> bool:
        budget = job.cluster.read(path)
        there: dict[str, Any] = budget.get("status", {})
        if any(condition["reason"] == "SyncFailed" for condition in there.get("conditions", ())):
            tried = {"annotations": {"tried-after": budget["metadata"]["resourceVersion"]}}
            send(job, "PATCH", path, {"metadata": tried})
        return status.items() <= there.items()

    job.wait_for(found, f"the budget says {status}")


def send(job: PlayedJob, method: str, path: str, body: dict[str, Any]) -> int:
    """Returns the answer's code."""
    cluster = job.cluster
    assert isinstance(cluster, Cluster)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    return int(cluster.api.request(method, path, body, content_type=kind).status)


def evict(job: PlayedJob, pod: str) -> int:
    """Ask for an eviction, as ``kubectl drain`` does; returns the answer's code."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": job.namespace},
    }
    return send(job, "POST", f"/api/v1/namespaces/{job.namespace}/pods/{pod}/eviction", body)


def test_one_member_at_a_time_is_evicted_and_the_next_when_its_replacement_trains(job: PlayedJob) -> None:
    job.apply(pod={"readinessGates": [{"conditionType": MEMBER_CONDITION}]}, replicas=3, spares=1)
    budget(job)
    pods = [f"job-{slot}-0" for slot in range(4)]
    job.runs(*pods)
    says(job, expectedPods=3, currentHealthy=0, disruptionsAllowed=0)
    job.join(*pods)
    job.round(1)
    job.join("job-3-0")  # a spare announces itself in each round: the next one may begin with it
    says(job, expectedPods=3, currentHealthy=3, disruptionsAllowed=1)

    assert evict(job, "job-0-0") == 201
    assert evict(job, "job-1-0") == 429, "the spare has not taken over yet"
    job.join("job-1-0", "job-2-0")
    job.round(2)
    says(job, currentHealthy=3, disruptionsAllowed=1)

    assert evict(job, "job-1-0") == 201
    job.runs("job-0-1", "job-1-1", "job-2-0", "job-3-0")
    says(job, currentHealthy=2, disruptionsAllowed=0)
    assert evict(job, "job-2-0") == 429, "two pods run that have not joined"
    job.join("job-0-1", "job-2-0", "job-3-0")
    job.round(3)
    says(job, expectedPods=3, currentHealthy=3, disruptionsAllowed=1)
