"""A job's lifecycle with the real operator, API server, scheduler, controllers and pods.

Participants are played by the test: what real torchruns make of it is in ``tests/e2e/test_lifecycle.py``,
what the planner decides in ``tests/scenarios``.
"""

from __future__ import annotations

import json
import time

import pytest

from devcluster.wait import wait_for
from elasticjob.contract.text import node_words
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import DEADLINE, ENDS_SLOWLY, PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

OWNED = "pods,leases,serviceaccounts,roles,rolebindings,networkpolicies"


def test_a_job_that_is_made_suspended_has_no_pods_until_it_is_resumed(job: PlayedJob) -> None:
    job.apply(suspend=True, activeDeadlineSeconds=600)
    job.is_true("Suspended")
    status = job.status()
    assert job.condition("Training")["reason"] == "Suspended"
    assert (status["currentRound"]["number"], "startTime" in status) == (0, False)
    assert "attempts" not in status["internal"]
    assert not job.pods()
    job.patch(suspend=False)
    job.runs("job-0-0", "job-1-0")
    assert job.condition("Suspended") | {"status": "False", "reason": "Resumed"} == job.condition("Suspended")
    assert "startTime" in job.status()
    job.join("job-0-0", "job-1-0")
    assert job.round(1)["cause"] == "Started"


def test_a_running_round_ends_with_the_suspension_and_the_number_goes_on(
    job: PlayedJob, operator: Operator
) -> None:
    """Everything but pods is kept, whatever becomes of the operator; nothing is charged."""
    job.apply(failurePolicy={"application": {"maxRestarts": 0}, "infrastructure": {"maxRestarts": 0}})
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    before = job.status()
    job.patch(suspend=True)
    job.is_true("Suspended")
    operator.kill()
    operator.restart()
    job.no_pods()
    job.wait_for(lambda: not job.status()["participants"], "status.participants is empty")
    job.wait_for(
        lambda: [lease["metadata"]["name"] for lease in job.labelled("leases")] == ["job-round"],
        "the Leases of the pods are gone",
    )
    held = job.status()
    assert held["currentRound"]["number"] == 1
    assert (held["currentRound"]["phase"], held["currentRound"]["end"]["cause"]) == ("Broken", "Suspended")
    assert held["replicas"] == 0
    assert held["accounts"] == before["accounts"]
    assert [r["number"] for r in held["roundHistory"]] == [1]
    job.patch(suspend=False)
    job.runs("job-0-1", "job-1-1")
    job.join("job-0-1", "job-1-1")
    round = job.round(2)
    assert (round["cause"], round["account"]) == ("Resumed", "scaling")
    status = job.status()
    assert [r["cause"] for r in status["roundHistory"]] == ["Resumed", "Started"]
    assert "startTime" not in held
    assert status["startTime"] > before["startTime"]
    assert status["restarts"] == 0
    assert set(job.charges().values()) == {0}


# shows: suspended and resumed faster than pods end
def test_suspending_and_resuming_faster_than_pods_go(job: PlayedJob) -> None:
    """Old pods are superseded at once: they are never members again, and a slot has one live pod."""
    job.apply(ENDS_SLOWLY)
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    for _ in range(3):
        job.patch(suspend=True)
        job.is_true("Suspended")
        job.patch(suspend=False)
        job.reads("Suspended", "Resumed")
    attempts = job.status()["internal"]["attempts"]
    assert attempts == [3, 3]
    job.runs("job-0-3", "job-1-3")
    job.join("job-0-3", "job-1-3")
    job.round(2)
    assert {p["podName"] for p in job.status()["participants"]} == {"job-0-3", "job-1-3"}
    job.wait_for(lambda: set(job.pods()) == {"job-0-3", "job-1-3"}, "the old pods are gone")
    assert set(job.charges().values()) == {0}
    assert job.status()["currentRound"]["number"] == 2


# shows: `activeDeadlineSeconds` have passed
def test_a_deadline_ends_the_job(job: PlayedJob) -> None:
    job.apply(activeDeadlineSeconds=600)
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    job.patch(activeDeadlineSeconds=1)
    job.is_true("Failed")
    failed = job.condition("Failed")
    assert failed["reason"] == "DeadlineExceeded"
    assert "activeDeadlineSeconds" in failed["message"]
    status = job.status()
    assert (status["currentRound"]["phase"], status["terminalState"]) == ("Closed", "Failed")
    assert "completionTime" not in status
    assert status["activeSeconds"] >= 1


# shows: `ttlSecondsAfterFinished` have passed
def test_a_time_to_live_that_is_set_after_the_end(job: PlayedJob) -> None:
    """The garbage collector takes what the job owned, once its pods have ended."""
    job.apply("sleep 5", activeDeadlineSeconds=1, cleanPodPolicy="None")
    job.is_true("Failed")
    assert set(job.pods()) == {"job-0-0", "job-1-0"}
    job.patch(ttlSecondsAfterFinished=3600)
    job.patch(ttlSecondsAfterFinished=0)
    job.wait_for(lambda: not job.get(), "the job is deleted")
    job.wait_for(lambda: not job.labelled(OWNED), "all that it owned is collected")


# shows: `managedBy` names another controller
def test_a_job_of_another_controller_is_not_touched(job: PlayedJob) -> None:
    """Not its status either; and there are neither pods nor Leases nor rights."""
    others = PlayedJob(job.cluster, job.namespace, "others")
    others.apply(managedBy="kueue.x-k8s.io/multikueue")
    made = others.get()
    job.apply()
    job.runs("job-0-0", "job-1-0")  # the operator is at work, and was told of the other job first
    others.patch(suspend=True)
    others.patch(suspend=False)
    job.patch(replicas=3)
    job.runs("job-0-0", "job-1-0", "job-2-0")
    now = others.get()
    assert now["status"] == {"observedGeneration": -1}, "the default of the definition"
    managers = {entry["manager"] for entry in now["metadata"]["managedFields"]}
    assert managers == {entry["manager"] for entry in made["metadata"]["managedFields"]} | {"kubectl-patch"}
    assert others.labelled(OWNED) == []


@pytest.mark.parametrize("cascade", ["foreground", "background"])
# shows: the job is deleted, at any moment
def test_jobs_are_deleted_whatever_goes_on(job: PlayedJob, operator: Operator, cascade: str) -> None:
    """In a running round, while one is formed, with pods that find no node, suspended: the garbage collector
    takes everything, no pod is made any more, and the operator has nothing to complain about."""
    running = PlayedJob(job.cluster, job.namespace, "running")
    forming = PlayedJob(job.cluster, job.namespace, "forming")
    pending = PlayedJob(job.cluster, job.namespace, "pending")
    suspended = PlayedJob(job.cluster, job.namespace, "suspended")
    running.apply(ENDS_SLOWLY)
    forming.apply(ENDS_SLOWLY)
    pending.apply(pod={"nodeSelector": {"no-such": "node"}})
    suspended.apply(suspend=True)
    running.runs("running-0-0", "running-1-0")
    running.join("running-0-0", "running-1-0")
    running.round(1)
    forming.runs("forming-0-0", "forming-1-0")
    forming.join("forming-0-0")
    pending.wait_for(lambda: len(pending.pods()) == 2, "pods that find no node")
    suspended.is_true("Suspended")
    jobs = (running, forming, pending, suspended)
    logged = len(operator.log.read_text())
    for one in jobs:
        one.delete("--wait=false", f"--cascade={cascade}")
    pods: set[str] = set()
    deadline = time.monotonic() + DEADLINE
    while any(one.get() or one.labelled(OWNED) for one in jobs):
        pods |= {name for one in jobs for name in one.pods()}
        assert time.monotonic() < deadline, "not all is collected"
    assert pods <= {f"{one.name}-{slot}-0" for one in (running, forming, pending) for slot in (0, 1)}
    log = operator.log.read_text()[logged:]
    assert "created pod" not in log
    assert not any(word in log for word in ("WARNING", "ERROR", "Traceback")), log


# shows: a job is deleted, and a finalizer keeps the object
def test_a_deleted_job_that_a_finalizer_keeps_ends_its_training_and_says_so(
    job: PlayedJob, operator: Operator
) -> None:
    job.apply(ENDS_SLOWLY)
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    finalizer = "example.com/backup"
    job.kubectl(
        "patch", "ej", job.name, "--type=merge", "-p", json.dumps({"metadata": {"finalizers": [finalizer]}})
    )
    logged = len(operator.log.read_text())
    job.delete("--wait=false")
    said = job.reads("Training", "Deleting")
    assert finalizer in said["message"]
    job.no_pods()
    job.wait_for(
        lambda: "terminating" not in job.condition("Training")["message"], "it says that no pod is left"
    )
    status = job.status()
    assert status["currentRound"]["phase"] == "Closed"
    assert (status["currentRound"]["members"], status["replicas"]) == (0, 0)
    assert {job.condition(kind)["status"] for kind in ("Complete", "Failed")} == {"False"}
    assert set(job.charges().values()) == {0}
    log = operator.log.read_text()[logged:]
    assert "created pod" not in log
    assert not any(word in log for word in ("ERROR", "Traceback")), log
    job.kubectl("patch", "ej", job.name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    job.wait_for(lambda: not job.get(), "the job is gone")


# shows: a job is deleted with `--cascade=orphan`, and one of the same name is applied
def test_pods_that_a_former_job_left_behind_are_named_with_their_nodes(job: PlayedJob) -> None:
    job.apply(ENDS_SLOWLY)
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    job.delete("--wait=true", "--cascade=orphan")
    job.apply(ENDS_SLOWLY)
    node = job.pods()["job-0-0"]["spec"]["nodeName"]
    text = job.says("it was left behind by a job of this name")
    assert f"still runs on {node_words(node)}" in text
    assert f"kubectl -n {job.namespace} delete pod job-0-0" in text
    job.kubectl("delete", "pod", "job-0-0", "job-1-0", "--wait=false")
    job.wait_for(lambda: "was left behind" not in job.condition("Training")["message"], "they are gone")


def test_a_job_of_the_same_name_at_once_is_a_new_job(job: PlayedJob) -> None:
    """While the pods of the former one still end: theirs are other names, its numbers begin again."""
    job.apply(ENDS_SLOWLY)
    job.runs("job-0-0", "job-1-0")
    job.join("job-0-0", "job-1-0")
    job.round(1)
    old = {p["metadata"]["uid"] for p in job.pods().values()}
    job.patch(suspend=True)
    job.is_true("Suspended")
    job.delete("--wait=true", "--cascade=background")
    job.apply()
    wait_for(
        lambda: sum(p["status"]["phase"] == "Running" for p in live(job, old)) == 2,
        DEADLINE,
        "two pods of the new job run",
        interval=0.1,
    )
    job.join(*(p["metadata"]["name"] for p in live(job, old)))
    assert job.round(1)["cause"] == "Started"
    assert job.condition("Suspended")["status"] == "False"
    assert set(job.charges().values()) == {0}, json.dumps(job.status()["accounts"])


def live(job: PlayedJob, old: set[str]) -> list[dict[str, dict[str, str]]]:
    """The pods that are not of the former job."""
    return [p for p in job.pods().values() if p["metadata"]["uid"] not in old]
