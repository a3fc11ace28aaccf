"""What the handler does differently on some versions of torch, end to end; see also ``test_losses``."""

from __future__ import annotations

import subprocess

import pytest

from elasticjob.agent.torch_version import workers_may_share_agent_store
from tests.e2e.job import PYTHON, SCRIPTS, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.matrix, pytest.mark.slow]


def test_elasticjob_run_takes_torchruns_place(job: JobRun) -> None:
    job.apply(["python", "-m", "elasticjob.run", str(SCRIPTS / "steps.py"), str(job.folder)])
    job.training(1, members=2)
    job.kill_worker("job-0-0")
    job.training(2, members=2)
    job.stop()
    job.complete()


def test_sigterm_to_one_agent_is_the_end_of_nothing_but_its_pod(job: JobRun) -> None:
    """Up to 2.7.1 torch calls ``shutdown()`` then, two times, and while the round still stands."""
    job.apply()
    job.training(1, members=2)
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", "job-0-0", "--wait=false")
    job.training(2, members=2)
    assert [r["cause"] for r in job.rounds()] == ["Started", "PodDeleted"]
    assert "job-1-0" in job.pods(), "the other pod has stayed"
    job.stop()
    job.complete()


def test_a_round_whose_port_is_taken_is_formed_again(job: JobRun) -> None:
    """torch 2.4 and 2.5: rank 0's worker serves the store at a port that its agent keeps for it (HeldPort);
    here a server that sets SO_REUSEADDR comes first to it."""
    asked = subprocess.run(
        [PYTHON, "-c", "from importlib import metadata; print(metadata.version('torch'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    version = asked.stdout.strip()
    if workers_may_share_agent_store(version):
        pytest.skip(f"on torch {version} the agent serves the workers' store")
    job.apply(
        [
            *("python", "-m", "elasticjob.run"),
            *(str(SCRIPTS / "takes_port.py"), str(SCRIPTS / "steps.py"), str(job.folder)),
        ]
    )
    job.training(2, members=2)
    second = job.rounds()[1]
    assert (second["cause"], second["account"]) == ("WorkerFailed", "application")
    assert "EADDRINUSE" in job.log("job-0-0")
    job.stop()
    job.complete()
