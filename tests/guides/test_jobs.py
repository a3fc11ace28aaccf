"""The guides' scripts as jobs: a worker is killed, the job shrinks, and each round begins where it should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import job
from tests.e2e.job import JobRun
from tests.guides import pages
from tests.guides.environment import GuidesEnvironment

__all__ = ["job"]
pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(1800)]

FOLDER = 'os.environ.get("CHECKPOINTS", "checkpoints")'


def can_drain(job: JobRun, number: int) -> bool:
    """Whether this round's leader has said that all workers ask whether to stop."""
    now = job.round()
    if now.get("number", 0) != number or "establishedTime" not in now:
        return False
    lease = json.loads(job.kubectl("get", "lease", now["leaderPodName"], "-o", "json"))
    said = json.loads(lease["metadata"]["annotations"].get("elasticjob.dev/drain", "{}"))
    return bool(said.get("nonce") == job.status()["internal"]["round"]["nonce"])


def said(job: JobRun, pattern: str) -> list[int]:
    """The steps that pods have printed in lines that look like this, in order."""
    texts = [job.log(pod) for pod in job.pods()]
    return sorted(int(step) for text in texts for step in re.findall(pattern, text))


def survives(
    job: JobRun, guides: GuidesEnvironment, script: Path, saved: Callable[[], list[int]], begins: str
) -> None:
    """Kill a worker after the first checkpoint; then take one of two pods away, which must lose no step.

    ``saved`` lists the steps of the complete checkpoints; ``begins`` is what rank 0 prints when it resumes.
    """
    job.deadline = 600.0  # three rounds of real workers, beside whatever else the machine does
    job.apply([guides.launcher, str(script)], replicas=2, minReplicas=1)
    job.wait_for(saved, "there is a checkpoint")
    before = max(saved())
    job.kill_worker(job.member(0)["podName"])
    job.wait_for(lambda: can_drain(job, 2), "round 2 trains")
    (resumed,) = said(job, begins)
    assert resumed >= before
    job.patch(replicas=1)
    job.wait_for(lambda: can_drain(job, 3), "round 3 trains")
    ends = [entry.get("end", {}) for entry in reversed(job.status()["roundHistory"])][:2]
    assert [end["cause"] for end in ends] == ["WorkerFailed", "ScaledDown"]
    assert ends[1]["drain"] == "Stopped"
    stopped = int(ends[1]["message"].rpartition("all workers stopped at step ")[2])
    assert stopped > resumed
    assert said(job, begins) == [resumed, stopped]


def test_hugging_faces_trainer(job: JobRun, guides: GuidesEnvironment) -> None:
    folder = job.folder / "checkpoints"
    changes = (FOLDER, repr(str(folder))), ("num_train_epochs=10", "num_train_epochs=10000")
    script = pages.write(job.folder, "huggingface.md", *changes)

    def saved() -> list[int]:
        return [int(path.parent.name.split("-")[1]) for path in folder.glob("checkpoint-*/elasticjob.json")]

    survives(job, guides, script, saved, r"begins from \S+checkpoint-(\d+)\n")


def test_accelerate(job: JobRun, guides: GuidesEnvironment) -> None:
    folder = job.folder / "checkpoints"
    changes = (FOLDER, repr(str(folder))), ("STEPS = 1000", "STEPS = 1000000")
    script = pages.write(job.folder, "huggingface.md", *changes, number=1)

    def saved() -> list[int]:
        return [int(path.parent.name.split("-s")[1]) for path in folder.glob("checkpoint-*/complete.json")]

    survives(job, guides, script, saved, r"ranks begin after step ([1-9]\d*)\n")


def test_lightning(job: JobRun, guides: GuidesEnvironment) -> None:
    folder = job.folder / "checkpoints"
    changes = (FOLDER, repr(str(folder))), ("max_epochs=10", "max_epochs=10000")
    script = pages.write(job.folder, "lightning.md", *changes)

    def saved() -> list[int]:
        return [int(step) for path in folder.glob("*.ckpt") for step in re.findall(r"step=(\d+)", path.name)]

    survives(job, guides, script, saved, r"begins from \S+step=(\d+)\S*\.ckpt\n")
