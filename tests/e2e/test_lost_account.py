"""Members that train and whose tokens the API server refuses: all, because their service account was deleted
and made again, or one.

The kubelet replaces a token only when it has nearly expired, the node agent of these tests every ten
seconds. So the pods keep a copy of their first one.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

import pytest

from devcluster.cluster import Cluster
from elasticjob.api.connection import DEFAULT_SERVICE_ACCOUNT_DIR
from elasticjob.contract.names import SERVICE_ACCOUNT_DIR_ENV
from tests.e2e.job import DEADLINE, SCRIPTS, TORCHRUN, JobRun
from tests.e2e.test_tokens import status
from tests.integration.pod_identity import token_file

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.slow]


def apply(job: JobRun, script: str) -> None:
    """Two pods whose tokens are not replaced."""
    job.folder.mkdir(parents=True, exist_ok=True)
    train = shlex.join([*TORCHRUN, str(SCRIPTS / script), str(job.folder)])
    kept = f"{job.folder}/kept-$ELASTICJOB_POD_UID"
    keep = f"cp -rL {DEFAULT_SERVICE_ACCOUNT_DIR} {kept}; export {SERVICE_ACCOUNT_DIR_ENV}={kept}"
    job.apply(command=["sh", "-c", f"{keep}; exec {train}"])


def end_of(job: JobRun, number: int) -> dict[str, Any]:
    """Wait until the end of this round is in the status."""

    def entry() -> dict[str, Any] | None:
        found = (r.get("end") for r in job.status().get("roundHistory", []) if r["number"] == number)
        return next(found, None)

    found: dict[str, Any] = job.wait_for(entry, f"the end of round {number} is recorded")
    return found


# shows: a job's service account is deleted
# shows: the job's service account is deleted
def test_an_account_that_is_deleted_is_made_again_and_nobody_is_taken_for_one_that_trains(
    job: JobRun, installed: Cluster
) -> None:
    apply(job, "steps.py")
    job.training(1, members=2)
    pods = [job.member(rank)["podName"] for rank in range(2)]
    tokens = [token_file(installed, job.namespace, pod).read_text() for pod in pods]
    began = time.monotonic()
    job.kubectl("delete", "serviceaccount", "job-elasticjob")
    text = job.says("service account was made again")
    print(f"after {time.monotonic() - began:.1f} s: {text}")
    assert all(pod in text for pod in pods)
    assert "whether all members train is not known" in text
    assert "job-elasticjob was deleted" in job.told("AccountMadeAgain")[0]
    job.wait_for(
        lambda: {status(installed, job.namespace, token) for token in tokens} == {401}, "tokens are refused"
    )
    job.goes_on(1)
    job.kill_worker(pods[0])
    killed = time.monotonic()
    end = end_of(job, 1)
    print(f"recorded {time.monotonic() - killed:.1f} s after the worker's end: {end['message']}")
    assert "a worker failed in round 1 (" in end["message"]
    assert end["account"] == "application"
    now = job.training(2, members=2)
    print(f"trains again {time.monotonic() - killed:.1f} s after the worker's end")
    assert not {job.member(rank)["podName"] for rank in range(now["members"])} & set(pods)
    assert "made again" not in job.condition("Training")["message"]


# shows: one member cannot write: its token or its rights are refused, or its path to the API ...
def test_the_end_of_a_worker_whose_agent_cannot_write_reaches_the_status_by_its_leader(
    job: JobRun, installed: Cluster
) -> None:
    """The other member's worker notices nothing."""
    apply(job, "lone_steps.py")
    job.training(1, members=2)
    leader, member = (job.member(rank)["podName"] for rank in range(2))
    token_file(installed, job.namespace, member).write_text("not a token")
    # It renews its Lease once a minute, and reads its token as often.
    says = f"{member} cannot write its Lease"
    job.wait_for(lambda: says in job.condition("Training")["message"], f"it says {says!r}", 2 * DEADLINE)
    print(job.condition("Training")["message"])
    job.goes_on(1)
    job.kill_worker(member)
    killed = time.monotonic()
    end = end_of(job, 1)
    print(f"recorded {time.monotonic() - killed:.1f} s after the worker's end: {end}")
    assert (end["cause"], end["account"]) == ("WorkerFailed", "application")
    assert end["message"] == f"a worker of {member} (group rank 1) failed: killed by SIGKILL"
    job.training(2, members=2)
    assert job.member(0)["podName"] == leader
    assert job.member(1)["podName"] != member
