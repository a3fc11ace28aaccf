"""A user changes what tells pods apart: labels, and the owner."""

from __future__ import annotations

import json

import pytest

from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

GROUP = "elasticjob.dev"


def label(job: PlayedJob, pod: str, *changes: str) -> None:
    job.cluster.kubectl("-n", job.namespace, "label", "--overwrite", "pod", pod, *changes)


# shows: a pod's slot or attempt label is changed or removed
def test_the_round_goes_on_whatever_labels_say(job: PlayedJob) -> None:
    """No pod is made or deleted for it; an Event tells. Then one more is made, beside the others."""
    job.apply(minReplicas=1)
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    label(job, "job-1-0", f"{GROUP}/slot-")
    job.wait_for(lambda: any("job-1-0" in m for m in job.events("PodLabelsIgnored")), "the first is told")
    label(job, "job-0-0", f"{GROUP}/slot=1", f"{GROUP}/attempt=old")
    job.wait_for(lambda: any("job-0-0" in m for m in job.events("PodLabelsIgnored")), "the second is told")
    job.patch(replicas=3)
    job.runs("job-0-0", "job-1-0", "job-2-0")
    assert job.status()["currentRound"]["number"] == 1
    assert job.status()["internal"]["attempts"] == [0, 0, 0]
    assert sum("job-1-0" in m for m in job.events("PodLabelsIgnored")) == 1


# shows: a pod's owner reference, or the job's label on it, is removed
def test_a_pod_that_lost_the_jobs_label_before_it_joined_gets_it_back(job: PlayedJob) -> None:
    job.apply()
    job.runs("job-0-0", "job-1-0")
    label(job, "job-1-0", f"{GROUP}/job-name-", f"{GROUP}/slot-", f"{GROUP}/attempt-")
    job.runs("job-0-0", "job-1-0")
    assert job.pods()["job-1-0"]["metadata"]["labels"][f"{GROUP}/slot"] == "1"
    job.join("job-0-0", "job-1-0")
    job.round(1)


# shows: a pod's owner reference, or the job's label on it, is removed
def test_a_pod_that_somebody_takes_from_the_job_leaves_its_slot(job: PlayedJob) -> None:
    job.apply()
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    free = json.dumps({"metadata": {"ownerReferences": None}})
    job.cluster.kubectl("-n", job.namespace, "patch", "pod", "job-1-0", "--type=merge", "-p", free)
    job.runs("job-0-0", "job-1-0", "job-1-1")
    job.join("job-0-0", "job-1-1")
    assert "no longer belongs to the job" in job.round(2)["message"]
