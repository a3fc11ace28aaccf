"""Rounds whose members stand in a Lease of their own, with real torchruns: three pods suffice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from elasticjob.contract.names import MEMBERS_ANNOTATION, ROUND_ANNOTATION, members_lease, round_lease
from elasticjob.contract.round_record import MemberList, RoundRecord
from tests.e2e.job import JobRun, Operator

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.slow]


@pytest.fixture
def operator(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    log = tmp_path / "operator.log"
    with Operator(installed, namespace, log, module="tests.e2e.large_rounds_operator") as running:
        yield running


def lease(job: JobRun, name: str) -> dict[str, Any]:
    """Its metadata."""
    answer = job.cluster.kubectl("-n", job.namespace, "get", "lease", name, "-o", "json")
    found: dict[str, Any] = json.loads(answer.stdout)["metadata"]
    return found


def members(job: JobRun) -> MemberList:
    return MemberList.parse(lease(job, members_lease("job"))["annotations"][MEMBERS_ANNOTATION])


def test_ranks_come_from_the_leader_and_a_spare_is_promoted(job: JobRun, operator: Operator) -> None:
    job.apply(replicas=2, spares=1)
    job.training(1, members=2)
    record = RoundRecord.parse(lease(job, round_lease("job"))["annotations"][ROUND_ANNOTATION])
    entries = {p["groupRank"]: p for p in job.status()["participants"] if "groupRank" in p}
    assert (record.member_ids, record.size, record.leader_id) == ((), 2, entries[0]["id"])
    listed = members(job)
    assert listed.head == (job.get()["metadata"]["uid"], 1, record.nonce)
    assert listed.member_ids == (entries[0]["id"], entries[1]["id"])
    assert {s["rank"] for s in job.steps()} == {0, 1}

    # A member is lost: a spare that was told that it is none takes its rank.
    (spare,) = job.wait_for(
        lambda: {p["podName"] for p in job.status()["participants"] if p["state"] == "Standby"}, "a spare"
    )
    job.kill_pod(entries[1]["podName"])
    job.training(2, members=2)
    ranks = {p["podName"]: p["groupRank"] for p in job.status()["participants"] if "groupRank" in p}
    assert ranks == {entries[0]["podName"]: 0, spare: 1}
    assert members(job).number == 2

    # So it is with another operator, and when the leader is lost.
    operator.kill()
    operator.restart()
    job.kill_pod(entries[0]["podName"])
    job.training(3, members=2)
    job.stop()
    job.complete()

    # The list goes with the job.
    job.cluster.kubectl("-n", job.namespace, "delete", "elasticjob", "job", "--timeout=60s")

    def gone() -> bool:
        return not job.cluster.kubectl(
            "-n", job.namespace, "get", "lease", members_lease("job"), "--ignore-not-found"
        ).stdout

    job.wait_for(gone, "the garbage collector has taken the list")
