"""Why a worker failed stands in its pod's Lease: real torchruns, with and without ``@record``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticjob.contract.names import FAILURE_ANNOTATION
from elasticjob.contract.reports import FailureReport
from elasticjob.contract.text import NO_ERROR_TEXT
from tests.e2e.job import SCRIPTS, TORCHRUN, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


def failure(job: JobRun, pod: str) -> FailureReport:
    """Wait for the report in the pod's Lease."""

    def reported() -> FailureReport | None:
        answer = job.cluster.kubectl("-n", job.namespace, "get", "lease", pod, "-o", "json", check=False)
        if answer.returncode != 0:
            return None
        annotations: dict[str, Any] = json.loads(answer.stdout)["metadata"].get("annotations", {})
        text = annotations.get(FAILURE_ANNOTATION)
        return None if text is None else FailureReport.parse(text)

    found: FailureReport = job.wait_for(reported, f"a failure report in Lease {pod}")
    return found


def script(job: JobRun, *arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
    return [*TORCHRUN, *flags, str(SCRIPTS / "fails.py"), str(job.folder), *arguments]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["exit"], 42, f"exit code 42; {NO_ERROR_TEXT}"),
        pytest.param(["exit", "record"], 42, f"exit code 42; {NO_ERROR_TEXT}", marks=pytest.mark.slow),
        pytest.param(["raise", "record"], 1, "ValueError: bad input 7", marks=pytest.mark.matrix),
        (["kill"], -9, "killed by SIGKILL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
# shows: a worker process dies
# shows: a worker raises, or exits with a code
def test_one_pod(job: JobRun, arguments: list[str], exit_code: int, message: str) -> None:
    """sys.exit leaves no error file even where main is decorated."""
    job.apply(script(job, *arguments), replicas=1)
    found = failure(job, "job-0-0")
    assert (found.round_number, found.group_rank, found.local_rank) == (1, 0, 0)
    assert (found.exit_code, found.after_round_end) == (exit_code, False)
    assert found.message.startswith(message)
    assert found.offset_milliseconds is not None
    job.stop()
    job.complete()
    assert [(r["number"], r["cause"]) for r in job.rounds()] == [(1, "Started"), (2, "WorkerFailed")]
    assert message in job.rounds()[1]["message"]


@pytest.mark.parametrize(
    ("how", "exit_code", "message"),
    [
        pytest.param("exit", 42, "exit code 42", marks=pytest.mark.matrix),
        pytest.param("kill", -9, "killed by SIGKILL", marks=pytest.mark.slow),
    ],
)
# shows: a worker fails, and workers of other pods fail because it is gone
def test_the_root_has_failed_before_its_echo(job: JobRun, how: str, exit_code: int, message: str) -> None:
    """Two pods; the workers of both are dead before either torchrun looks. Which of the two looks first is
    chance, which of the workers ended first is not."""
    job.apply(script(job, how, "record", flags=("--monitor-interval=4",)))
    root, echo = failure(job, "job-1-0"), failure(job, "job-0-0")
    assert (root.round_number, root.group_rank, echo.round_number, echo.group_rank) == (1, 1, 1, 0)
    assert message in root.message
    assert root.exit_code == exit_code
    assert echo.exit_code not in (None, 0)
    assert "Error" in echo.message, "its peer was lost to it"
    assert root.offset_milliseconds is not None
    assert echo.offset_milliseconds is not None
    assert root.offset_milliseconds < echo.offset_milliseconds
    job.stop()
    job.complete()


@pytest.mark.slow
def test_two_workers_of_one_pod(job: JobRun) -> None:
    """The one that failed by itself is named, not its neighbour, which dies of it or is stopped by torch."""
    job.apply(script(job, "exit", "record"), replicas=1, nprocPerNode=2)
    found = failure(job, "job-0-0")
    assert (found.group_rank, found.local_rank, found.exit_code) == (0, 1, 42)
    job.stop()
    job.complete()


@pytest.mark.slow
def test_a_launcher_of_ones_own_in_between(job: JobRun) -> None:
    """torch's worker is a shell: its word for a signal is named."""
    inner = f"python {SCRIPTS / 'fails.py'} {job.folder}"
    shell = ["--no-python", "bash", "-c"]
    job.apply([*TORCHRUN, *shell, f"{inner} kill; exit"], replicas=1)
    found = failure(job, "job-0-0")
    assert found.exit_code == 137
    assert found.message.startswith("exit code 137 (SIGKILL, as reported by a shell)")
    job.stop()
    job.complete()


# shows: torchrun gives up (your own pods, `--max-restarts` used up)
def test_a_torchrun_that_gives_up_says_why(job: JobRun) -> None:
    """Its restarts are used up (pods of others have torch's own limit, 0): it reports before it leaves."""
    job.apply(
        script(job, "exit", flags=("--max-restarts=0",)),
        replicas=1,
        failurePolicy={"application": {"maxRestarts": 0}},
    )
    found = failure(job, "job-0-0")
    assert (found.round_number, found.exit_code, found.local_rank) == (1, 42, 0)
    assert job.failed()["reason"] == "ApplicationRestartsExhausted"


@pytest.mark.slow
# shows: a worker's failure is reported after the round has ended
def test_a_round_that_others_have_ended_is_no_failure(job: JobRun) -> None:
    """What torch stops at a restart is not reported."""
    job.apply([*TORCHRUN, str(SCRIPTS / "steps.py"), str(job.folder)])
    job.training(1, members=2)
    job.scale(3)
    job.training(2, members=3)
    job.stop()
    job.complete()
    for pod in ("job-0-0", "job-1-0"):
        lease = json.loads(job.cluster.kubectl("-n", job.namespace, "get", "lease", pod, "-o", "json").stdout)
        assert FAILURE_ANNOTATION not in lease["metadata"]["annotations"]
