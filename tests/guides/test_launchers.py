"""The table of launchers: commands other than torchrun that run torch's agent."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import job
from tests.e2e.job import SCRIPTS, JobRun
from tests.guides.environment import GuidesEnvironment

__all__ = ["job"]
pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(1800)]

ACCELERATE = (
    "accelerate.commands.launch --multi_gpu --num_processes 2 --rdzv_backend k8s --max_restarts 1000000"
)
LAUNCHERS = {"accelerate": ACCELERATE, "torch": "torch.distributed.run"}
"""What comes after ``python -m``."""


def kill_worker(job: JobRun, pod: str) -> None:
    """SIGKILL to one process that has a rank."""
    for pid in job.cluster.nodes.pids(job.namespace, pod):
        with contextlib.suppress(OSError):
            if b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return
    raise AssertionError(f"no worker process in {pod}")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_that_run_torchs_agent(job: JobRun, guides: GuidesEnvironment, launcher: str) -> None:
    """Two pods with two workers each; the loss of one worker is the agent's to mend, in the same pod."""
    job.deadline = 400.0
    command = [
        str(guides.python),
        "-m",
        *LAUNCHERS[launcher].split(),
        str(SCRIPTS / "steps.py"),
        str(job.folder),
    ]
    job.apply(command, replicas=2, nprocPerNode=2)
    job.training(1, members=2)
    assert {step["world"] for step in job.steps(1)} == {4}
    pods = set(job.pods())
    kill_worker(job, min(pods))
    job.training(2, members=2)
    assert job.rounds()[1]["cause"] == "WorkerFailed"
    assert set(job.pods()) == pods
    job.stop()
    job.complete()
