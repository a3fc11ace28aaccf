"""Suspend, resume, and what is left of a job after its end, with real torchruns."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.wait import wait_for
from tests.e2e.job import DEADLINE, JobRun, change

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

OWNED = "pods,leases,serviceaccounts,roles,rolebindings,networkpolicies"


@pytest.mark.slow
# shows: `suspend: true`
# shows: `suspend: false` again
def test_suspended_in_the_middle_of_training_and_resumed(job: JobRun) -> None:
    """Pods go and come; the number goes on and nothing is charged. At the end nothing is left of the pods,
    and with the time to live nothing of the job."""
    job.apply(cleanPodPolicy="All")
    job.training(1, members=2)
    change(job, suspend=True)
    job.wait_for(lambda: job.condition("Suspended").get("status") == "True", "Suspended")
    job.wait_for(lambda: not job.pods(), "the pods are gone")
    held, steps = job.status(), len(job.steps())
    assert (
        held["currentRound"]["number"],
        held["currentRound"]["phase"],
        held["currentRound"]["end"]["cause"],
    ) == (
        1,
        "Broken",
        "Suspended",
    )
    job.wait_for(lambda: not job.status()["participants"], "status.participants is empty")
    change(job, suspend=False)
    resumed = job.training(2, members=2)
    assert resumed["cause"] == "Resumed"
    assert len(job.steps(1)) == steps, "nobody trained while the job was suspended"
    job.stop()
    job.complete()
    status = job.status()
    assert [(r["number"], r["cause"]) for r in job.rounds()] == [(1, "Started"), (2, "Resumed")]
    assert status["restarts"] == 0
    assert all(not account.get("charges") for account in status["accounts"])
    assert "startTime" not in held
    assert status["completionTime"] > status["startTime"]
    assert status["activeSeconds"] >= held["activeSeconds"]
    job.wait_for(lambda: not job.pods(), "cleanPodPolicy All: the pods that have ended are deleted")
    change(job, ttlSecondsAfterFinished=0)
    gone(job)


# shows: `ttlSecondsAfterFinished` have passed
def test_complete_with_a_spare_and_deleted_at_once(job: JobRun) -> None:
    """The one that stands by ends as quietly as the one that has trained; ttlSecondsAfterFinished is 0."""
    job.apply(replicas=1, spares=1, ttlSecondsAfterFinished=0)
    job.training(1, members=1)
    job.wait_for(lambda: "Standby" in [p["state"] for p in job.status()["participants"]], "one stands by")
    spare = next(p["podName"] for p in job.status()["participants"] if p["state"] == "Standby")
    logs = [job.cluster.nodes.logs_path(job.namespace, pod) for pod in (spare, job.member(0)["podName"])]
    job.stop()
    gone(job)
    assert any("of round 1 succeeded" in text for text in job.told("JobComplete"))
    assert not any("Traceback" in Path(log).read_text() for log in logs)


def gone(job: JobRun) -> None:
    """Wait until neither the job nor anything that it owned is there."""

    def left() -> str:
        there = job.cluster.kubectl(
            "-n",
            job.namespace,
            "get",
            f"elasticjobs,{OWNED}",
            "-l",
            f"elasticjob.dev/job-name={job.name}",
            "-o",
            "name",
        )
        itself = job.cluster.kubectl("-n", job.namespace, "get", "elasticjobs", "-o", "name")
        return there.stdout + itself.stdout

    # Not JobRun.wait_for, which reads the job's status.
    wait_for(lambda: not left(), DEADLINE, "the job and all that it owned are gone", interval=0.1)
