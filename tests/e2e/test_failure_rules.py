"""Failure rules and accounts with real torchruns: what the root failure is, and what a rule makes of it."""

# shows: a failure rule matches the root failure

from __future__ import annotations

import shlex

import pytest

from tests.e2e.job import SCRIPTS, TORCHRUN, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def script(job: JobRun, *arguments: str) -> list[str]:
    return [*TORCHRUN, "--monitor-interval=4", str(SCRIPTS / "fails.py"), str(job.folder), *arguments]


def test_a_rule_on_the_root_fails_the_job_and_the_echo_decides_nothing(job: JobRun) -> None:
    """The worker of rank 1 exits with 42; that of rank 0 fails for the loss of it. Each rule is for one."""
    job.apply(
        script(job, "exit", "record"),
        failurePolicy={
            "rules": [
                {"name": "network", "onErrorPattern": "Error", "action": "Ignore"},
                {"name": "bad-input", "onWorkerExitCodes": [42], "action": "FailJob"},
            ]
        },
    )
    condition = job.failed()
    assert condition["reason"] == "FailureRule"
    assert condition["message"].startswith("a worker of job-1-0 (group rank 1) failed: exit code 42")
    assert condition["message"].endswith("; rule bad-input: FailJob")
    status = job.status()
    assert status["currentRound"]["end"]["ruleName"] == "bad-input"
    failure = status["lastFailure"]
    assert (failure["podName"], failure["groupRank"], failure["exitCode"], failure["round"]) == (
        "job-1-0",
        1,
        42,
        1,
    )
    assert "nodeName" in failure
    assert failure["logsCommand"] == f"kubectl -n {job.namespace} logs job-1-0 -c train"
    assert job.cluster.kubectl(*shlex.split(failure["logsCommand"])[1:], check=False).returncode == 0
    (application,) = (a for a in status["accounts"] if a["name"] == "application")
    (charge,) = application["charges"]
    assert (charge["round"], charge["cause"], charge["nodeName"]) == (1, "WorkerFailed", failure["nodeName"])


@pytest.mark.slow
def test_what_a_rule_ignores_is_charged_to_nobody(job: JobRun) -> None:
    """With an account of nothing the job lives on, and learns how long the failure took to be noticed."""
    job.apply(
        script(job, "exit", "record"),
        failurePolicy={
            "application": {"maxRestarts": 0},
            "infrastructure": {"maxRestarts": 0},
            "rules": [{"name": "wants-restart", "onWorkerExitCodes": [42], "action": "Ignore"}],
        },
    )
    job.wait_for(lambda: len(job.rounds()) > 1, "a second round")
    job.stop()
    job.complete()
    second = job.rounds()[1]
    assert (second["cause"], second["ruleName"], "account" in second) == (
        "WorkerFailed",
        "wants-restart",
        False,
    )
    assert second["message"].endswith("; rule wants-restart: Ignore (not charged)")
    # torchrun looks at its workers every four seconds here.
    assert 0 <= second["detectMilliseconds"] <= 60_000
    status = job.status()
    assert status["restarts"] == 0
    assert not [a for a in status["accounts"] if a["used"]]
