"""Spares, growing and shrinking, and pods that cannot be scheduled, with real torchruns."""

from __future__ import annotations

import pytest

from tests.e2e.job import JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def ranks(job: JobRun) -> dict[str, int]:
    """The members' ranks by pod."""
    return {p["podName"]: p["groupRank"] for p in job.status()["participants"] if "groupRank" in p}


def standbys(job: JobRun) -> set[str]:
    """The pods that stand by, according to the status and to the label that autoscalers read."""
    said = {p["podName"] for p in job.status()["participants"] if p["state"] == "Standby"}
    labelled = {
        name for name, pod in job.pods().items() if "elasticjob.dev/standby" in pod["metadata"]["labels"]
    }
    return said & labelled


def test_a_spare_is_promoted_and_replaced(job: JobRun) -> None:
    job.apply(replicas=2, spares=1)
    job.training(1, members=2)
    before = set(ranks(job))
    (spare,) = job.wait_for(lambda: standbys(job), "a spare stands by")
    assert spare not in before
    assert job.status()["replicas"] == 2, "what /scale says leaves the spare out"
    lost = next(pod for pod, rank in ranks(job).items() if rank == 1)
    job.kill_pod(lost)
    second = job.training(2, members=2)
    assert second["number"] == 2, "the very round that lost a member promoted the spare"
    assert ranks(job)[spare] == 1, "the spare takes over the lost rank and keeps its name"
    history = job.rounds()[1]
    assert (history["cause"], history["account"]) == ("PodLost", "infrastructure")
    assert f"{spare} took over group rank 1" in history["message"]
    (fresh,) = job.wait_for(lambda: standbys(job) - {spare}, "another spare stands by")
    assert fresh not in before | {spare, lost}
    assert job.round()["number"] == 2, "its coming breaks nothing"
    assert job.status()["replicas"] == 2
    job.stop()
    job.complete()
    job.wait_for(
        lambda: all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in job.pods().values()),
        "also the spare has ended",
    )
    assert job.pods()[fresh]["status"]["phase"] == "Succeeded"


@pytest.mark.slow
def test_pods_that_nobody_can_place_hold_up_nobody(job: JobRun) -> None:
    job.apply(replicas=2, minReplicas=2)
    job.training(1, members=2)
    nodes = job.cluster.kubectl("get", "nodes", "-o", "name").stdout.split()
    job.cluster.kubectl("cordon", *nodes)
    try:
        job.scale(4)
        said = job.wait_for(
            lambda: _sentence(job, "job-2-0, job-3-0: "), "the status says which can't be placed, and why"
        )
        assert "nodes are available" in said
        assert "unschedulable" in said
        assert job.round()["number"] == 1
        assert job.condition("Training")["status"] == "True"
    finally:
        job.cluster.kubectl("uncordon", *nodes)
    second = job.training(2, members=4)
    assert second["number"] == 2, "both are let in together"
    assert job.rounds()[1]["cause"] == "ScaledUp"
    job.stop()
    job.complete()


def _sentence(job: JobRun, part: str) -> str:
    message = str(job.condition("Training").get("message", ""))
    return message if part in message else ""
