"""A real HorizontalPodAutoscaler scales a job through /scale."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.job import JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

METRIC = "free-places"


def autoscaler(job: JobRun, most: int) -> dict[str, Any]:
    """One that wants as many replicas as the metric says."""
    wanted = {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "1"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": job.name, "namespace": job.namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "elasticjob.dev/v1alpha1",
                "kind": "ElasticJob",
                "name": job.name,
            },
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": [{"type": "External", "external": wanted}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


def condition(job: JobRun, kind: str) -> dict[str, Any]:
    """A condition of the autoscaler, {} if it is not there."""
    path = f"/apis/autoscaling/v2/namespaces/{job.namespace}/horizontalpodautoscalers/{job.name}"
    status = job.cluster.api.request("GET", path).json().get("status", {})
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


@pytest.mark.slow
# shows: `kubectl scale` up, or an autoscaler
def test_an_autoscaler_scales_a_job(job: JobRun) -> None:
    """Up with all newcomers in one round, and down. What it may not do or can't know does no harm."""
    with job.cluster.external_metrics() as metrics:
        metrics.set(job.namespace, METRIC, 1)
        job.apply(replicas=1, minReplicas=1, maxReplicas=3)
        job.cluster.apply(json.dumps(autoscaler(job, most=5)))
        job.training(1, members=1)
        job.wait_for(
            lambda: condition(job, "ScalingActive").get("status") == "True",
            "the autoscaler has read its metric",
        )

        metrics.set(job.namespace, METRIC, 3)
        up = job.training(2, members=3)
        assert (up["number"], up["cause"]) == (2, "ScaledUp"), "both were let in together"
        assert job.get()["spec"]["replicas"] == 3
        assert job.status()["replicas"] == 3

        metrics.set(job.namespace, METRIC, 5)
        job.wait_for(
            lambda: condition(job, "AbleToScale").get("status") == "False",
            "the autoscaler is refused more than maxReplicas",
        )
        assert "maxReplicas" in condition(job, "AbleToScale")["message"]
        metrics.unset(job.namespace, METRIC)
        job.wait_for(
            lambda: condition(job, "ScalingActive").get("status") == "False",
            "the autoscaler has lost its metric",
        )
        job.goes_on(2)
        assert job.round()["number"] == 2

        metrics.set(job.namespace, METRIC, 2)
        down = job.training(3, members=2)
        assert (down["number"], down["cause"]) == (3, "ScaledDown")
        job.wait_for(lambda: len(job.pods()) == 2, "the pod that left is gone")
        assert {a["name"]: a["used"] for a in job.status()["accounts"] if a["used"]} == {"scaling": 2}

        job.stop()
        job.complete()
        pods = set(job.pods())
        metrics.set(job.namespace, METRIC, 3)
        job.wait_for(lambda: job.get()["spec"]["replicas"] == 3, "the autoscaler scales what is over")
        job.wait_for(
            lambda: job.status()["observedGeneration"] == job.get()["metadata"]["generation"],
            "the operator has seen it",
        )
        assert set(job.pods()) == pods, "a job that is complete gets no more pods"
        assert job.round()["number"] == 3


@pytest.mark.slow
def test_an_autoscaler_may_ask_for_a_number_between_two_sizes(job: JobRun) -> None:
    """The number that it wrote stays, though fewer pods train and /scale says so."""
    with job.cluster.external_metrics() as metrics:
        metrics.set(job.namespace, METRIC, 1)
        job.apply(replicas=1, minReplicas=1, scaling={"sizes": [1, 3], "scaleUpDelaySeconds": 0})
        job.cluster.apply(json.dumps(autoscaler(job, most=3)))
        job.training(1, members=1)

        metrics.set(job.namespace, METRIC, 3)
        job.training(2, members=3)
        metrics.set(job.namespace, METRIC, 2)
        job.training(3, members=1)
        job.says("1 of 2 replicas train: sizes are 1, 3; 1 stands by")
        for _ in range(3):  # the autoscaler looks every few seconds, and the job trains meanwhile
            job.goes_on(3)
        assert (job.get()["spec"]["replicas"], job.status()["replicas"]) == (2, 1)
        assert job.round()["number"] == 3
        metrics.set(job.namespace, METRIC, 3)
        job.training(4, members=3)
        job.stop()
        job.complete()
