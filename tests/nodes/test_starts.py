"""How pods and workers start: what one has said that ends before it joins, and workers that start warm."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticjob.warm.boot.process import IDLE_OOM_SCORE
from tests.nodes.job import BOTH, DigitsJob
from tests.nodes.table import Recovery

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]

ROOM = {"resources": {"limits": {"memory": "3Gi"}, "requests": {"memory": "512Mi"}}}
"""For two interpreters with torch. A pod with a request is not what the kernel prefers most by itself."""


@BOTH
def test_a_pod_that_ends_before_it_joins_says_why(new_job: Callable[[], DigitsJob]) -> None:
    job = new_job()
    job.apply(container={"command": ["sh", "-c", "echo the data is not there >&2; exit 3"], "args": []})
    why = "ended before it joined: exit code 3: the data is not there"
    assert any(why in event for event in job.told("PodEndedEarly"))
    assert why in job.says("the data is not there")
    assert why in job.status()["lastFailure"]["message"]
    assert job.status()["lastFailure"]["exitCode"] == 3
    (charged,) = (one for one in job.status()["accounts"] if one["name"] == "application")
    assert {one["cause"] for one in charged["charges"]} == {"PodFailed"}


@BOTH
def test_a_worker_is_killed_and_the_next_is_warm(
    new_job: Callable[[], DigitsJob], table: Callable[[Recovery], None]
) -> None:
    """The kernel prefers an interpreter that waits. One that has become a worker is as any process of its
    container."""
    job = new_job()
    job.apply(container=ROOM, warmWorkers={"enabled": True})
    job.training(members=2)
    members = [job.member(0), job.member(1)]

    def ready(pod: str) -> bool:
        return "warm workers: ready, 1 interpreter" in job.kubectl("logs", pod, "-c", "train")

    job.wait_for(lambda: all(map(ready, members)), "an interpreter waits in each pod")
    (spare,), own = waiting(job, members[1]), score(job.pids(members[1])[0])
    assert own != IDLE_OOM_SCORE
    struck = job.strike(worker(job, members[1]), signal.SIGKILL)
    found = job.recovered("kill -9 of a worker, with warm workers", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("WorkerFailed", "application")
    assert "killed by SIGKILL" in found.message
    assert runs_the_script(spare), "what had waited trains"
    assert score(spare) == own

    def starts() -> bool:
        rounds = {one["number"]: one.get("workerStarts") for one in job.status()["roundHistory"]}
        return bool(rounds[found.round] == {"warm": 2, "cold": 0})

    job.wait_for(starts, "the status says that all workers have started warm")


def waiting(job: DigitsJob, pod: str) -> list[int]:
    """The interpreters of a pod that have not become a worker yet."""
    return [pid for pid in job.pids(pod) if score(pid) == IDLE_OOM_SCORE]


def worker(job: DigitsJob, pod: str) -> int:
    """The one process of a pod that trains, beside torchrun and what waits already."""
    first, *others = job.pids(pod)
    (found,) = (pid for pid in others if score(pid) == score(first) and runs_the_script(pid))
    return found


def runs_the_script(pid: int) -> bool:
    """Whether a process was started for the script."""
    return b"train.py" in Path("/proc", str(pid), "cmdline").read_bytes()


def score(pid: int) -> int:
    """How much the kernel prefers a process when memory is short."""
    return int(Path("/proc", str(pid), "oom_score_adj").read_text())
