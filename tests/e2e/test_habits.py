"""What scripts and commands do that other systems broke on: real torchruns, and what people see of it."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from elasticjob.agent.local_addr import NO_SUCH_NAME
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


def uploads(job: JobRun, program: str = "sleep") -> bool:
    """Whether the process beside torchrun lives."""
    for pid in job.cluster.nodes.pids(job.namespace, "job-0-0"):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"{program}\x00600\x00".encode():
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


@pytest.mark.slow
def test_a_hang_ends_the_workers_and_nothing_beside_them(job: JobRun) -> None:
    """The kernel cuts the names of the workers and of the uploader in the middle of a letter."""
    job.folder.mkdir(parents=True)
    uploader = job.folder / ("é" * 8)
    shutil.copy(shutil.which("sleep") or "", uploader)
    torchrun = shlex.join([*TORCHRUN, "--nproc-per-node=2", str(SCRIPTS / "hangs_named.py")])
    command = f'setsid "$2" 600 > /dev/null 2>&1 & exec {torchrun} "$1"'
    job.apply(
        ["sh", "-c", command, "sh", str(job.folder), str(uploader)],
        replicas=1,
        failurePolicy={"hangTimeoutSeconds": HANG_SECONDS},
    )
    job.training(2, members=1)
    assert uploads(job, str(uploader)), "it is no worker"
    second = job.rounds()[1]
    assert (second["cause"], second["account"]) == ("Hang", "application")
    (charge,) = next(a for a in job.status()["accounts"] if a["name"] == "application")["charges"]
    assert charge["cause"] == "Hang"
    log = job.log("job-0-0")
    ranks = re.findall(r"round 1 hung; the stack of (rank \S+ \(local rank \d), pid \d+\):", log)
    assert sorted(ranks) == ["rank 0 (local rank 0", "rank 1 (local rank 1"]
    assert log.count("Fatal Python error: Aborted") == 2
    assert log.count("in stuck_for_ever") == 1, "that of the rank that did not come"
    job.stop()
    job.complete()


INTERFACE = socket.if_nameindex()[-1][1]
"""Pods are processes of this machine, and have its network interfaces."""
UNKNOWN = "nowhere.invalid"
REFUSED = [
    (INTERFACE, "which is the name of a network interface"),
    ("localhost", "here: the other pods would connect to themselves"),
    ("0.0.0.0", "which no other pod can reach"),
    ("300.1.1.1", "which is not a valid IP address"),
    (UNKNOWN, "and this name cannot be resolved"),
]


def unresolved(name: str) -> None:
    """Skip unless the resolver says that there is no such name: without a name server it cannot know."""
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror as error:
        if error.errno in NO_SUCH_NAME:
            return
    pytest.skip(f"the resolver of this machine does not say that there is no {name}")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("10.0.0.5:29500", "which has a port"),
        *(pytest.param(address, why, marks=pytest.mark.slow) for address, why in REFUSED),
    ],
)
def test_an_address_that_no_other_pod_can_connect_to_is_refused(job: JobRun, address: str, why: str) -> None:
    if address == UNKNOWN:
        unresolved(address)
    command = [*TORCHRUN, f"--local-addr={address}", str(SCRIPTS / "alone.py")]
    job.apply(command, replicas=1, failurePolicy={"application": {"maxRestarts": 0}})
    for said in (job.failed()["message"], job.told("PodEndedEarly")[0]):
        assert f"--local-addr is '{address}', " in said
        assert why in said
        assert "expected an address of this pod" in said


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
