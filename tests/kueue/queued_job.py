"""A job in a queue, whose participants the test plays."""

from __future__ import annotations

from typing import Any

from tests.integration.lifecycle_job import SLEEPS, PlayedJob
from tests.kueue.stage import REQUESTS, Stage, labels


def apply(stage: Stage, job: PlayedJob, script: str = SLEEPS, quota: int = 4, **spec: Any) -> None:
    """A job of 4 that trains with 2, in queue a."""
    stage.queue("a", quota, stage.flavor())
    submit(job, script, **spec)


def submit(job: PlayedJob, script: str = SLEEPS, **spec: Any) -> None:
    """The same, and queue a is there."""
    job.labels = {**labels("a"), **job.labels}
    job.resources = {"requests": REQUESTS}
    job.apply(script, **{"replicas": 4, "minReplicas": 2, **spec})


def all_run(job: PlayedJob, count: int = 4) -> list[str]:
    """Wait until so many pods run; return their names."""

    def running() -> list[str]:
        pods = job.pods().items()
        return sorted(
            name
            for name, pod in pods
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        )

    return list(job.wait_for(lambda: len(running()) == count and running(), f"{count} pods run"))
