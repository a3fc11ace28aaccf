"""What scripts and commands do that other systems broke on: real torchruns, and what people see of it."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import pytest

from tests.e2e.job import SCRIPTS, TORCHRUN, JobRun, change
from tests.e2e.test_planned_changes import drainable

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

HANG_SECONDS = 15
"""Longer than an interpreter takes to start on a slow machine."""


def said(job: JobRun, what: str) -> list[str]:
    """Wait until both workers have said it."""
    found = [job.folder / f"{what}-{rank}" for rank in range(2)]
    job.wait_for(lambda: all(path.exists() for path in found), f"both workers say {what}")
    return [path.read_text() for path in found]


def uploads(job: JobRun) -> bool:
    """Whether the process beside torchrun lives."""
    for pid in job.cluster.nodes.pids(job.namespace, "job-0-0"):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00":
                return True
    return False


def test_names_local_ranks_and_processes_left_behind(job: JobRun) -> None:
    """The command starts an uploader beside torchrun. A worker fails, which leaves children; then the job is
    suspended, and no step is lost although both workers call themselves local rank 0."""
    torchrun = shlex.join([*TORCHRUN, "--nproc-per-node=2", str(SCRIPTS / "habits.py")])
    command = f'setsid sleep 600 > /dev/null 2>&1 & exec {torchrun} "$1"'
    job.apply(["sh", "-c", command, "sh", str(job.folder)], replicas=1)
    assert said(job, "alive") == ["", ""], "what workers of round 1 left behind has ended"
    assert "round 1: its workers left 2 processes behind, to be ended before" in job.log("job-0-0")
    assert uploads(job), "it is no worker"
    drainable(job, 2, 1)
    change(job, suspend=True)
    first, second = said(job, "stopped")
    assert first == second
    job.wait_for(lambda: "end" in job.rounds()[1], "round 2 has ended")
    worker, suspended = (entry["end"] for entry in reversed(job.status()["roundHistory"]))
    assert worker["cause"] == "WorkerFailed"
    assert worker["message"].startswith("a worker of job-0-0 (group rank 0) failed: exit code 3")
    assert suspended["drain"] == "Stopped"
    assert f"all workers stopped at step {first}" in suspended["message"]


@pytest.mark.slow
def test_a_worker_that_trains_each_fold_in_a_child_does_not_hang(job: JobRun) -> None:
    command = [*TORCHRUN, str(SCRIPTS / "folds.py"), str(HANG_SECONDS + 5), str(job.folder)]
    job.apply(command, replicas=1, failurePolicy={"hangTimeoutSeconds": HANG_SECONDS})
    job.wait_for((job.folder / "done").exists, "the last fold is trained")
    assert [r["cause"] for r in job.rounds()] == ["Started"]
    job.stop()
    job.complete()


def test_an_address_that_no_other_pod_can_connect_to_is_refused(job: JobRun) -> None:
    command = [*TORCHRUN, "--local-addr=10.0.0.5:29500", str(SCRIPTS / "alone.py")]
    job.apply(command, replicas=1, failurePolicy={"application": {"maxRestarts": 0}})
    sentence = "--local-addr is '10.0.0.5:29500', which has a port; expected an address of this pod"
    assert sentence in job.failed()["message"]
    assert sentence in job.told("PodEndedEarly")[0]


def test_the_status_says_where_a_workers_output_is(job: JobRun) -> None:
    """Not in the pod's log: torchrun puts it into a file."""
    logs = job.folder / "logs"
    flags = ["--redirects=3", f"--log-dir={logs}"]
    command = [*TORCHRUN, *flags, str(SCRIPTS / "fails.py"), str(job.folder), "exit"]
    job.apply(command, replicas=1, failurePolicy={"application": {"maxRestarts": 0}})
    job.failed()
    (file,) = logs.glob("*/attempt_0/0/stderr.log")
    assert f"exit code 42; its output is in {file} of the pod" in job.status()["lastFailure"]["message"]
    assert f"the workers' output goes into files, such as {file}" in job.log("job-0-0")
