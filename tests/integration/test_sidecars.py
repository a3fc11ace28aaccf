"""Other containers in a pod whose training container has ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.lifecycle_job import SLEEPS, PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

IMAGE = "elasticjob-test"
FAILS = "sleep 1; exit 3"


def container(name: str, script: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **fields}


# shows: a training container ends beside a sidecar that keeps running
def test_pods_whose_sidecars_live_do_not_accumulate(job: PlayedJob) -> None:
    """The training container fails again and again beside one that never ends by itself."""
    pod = {"containers": [container("train", FAILS), container("shipper", SLEEPS)]}
    job.apply(pod=pod, replicas=1, failurePolicy={"application": {"maxRestarts": 30}})
    most = 0

    def third_attempt() -> bool:
        nonlocal most
        most = max(most, len(job.pods()))
        return bool(job.status().get("internal", {}).get("attempts", [0])[0] >= 3)

    job.wait_for(third_attempt, "the slot is at its fourth pod")
    job.wait_for(lambda: len(job.pods()) <= 2, "the pods before are gone")
    assert most <= 3
    assert "exit code 3" in job.status()["lastFailure"]["message"]


# shows: a training container ends beside a sidecar that keeps running
def test_a_native_sidecar_is_ended_by_the_kubelet_and_its_pod_is_kept(job: PlayedJob) -> None:
    """The pod ends as a whole, so it holds nothing: of the slot the newest is kept for its log."""
    pod = {
        "initContainers": [container("shipper", SLEEPS, restartPolicy="Always")],
        "containers": [container("train", FAILS)],
    }
    job.apply(pod=pod, replicas=1, failurePolicy={"application": {"maxRestarts": 1}})
    failed = job.reads("Failed", "ApplicationRestartsExhausted")
    assert "exit code 3" in failed["message"]
    job.wait_for(lambda: job.pods()["job-0-1"]["status"]["phase"] == "Failed", "the last pod has ended")
    assert "deletionTimestamp" not in job.pods()["job-0-1"]["metadata"]
