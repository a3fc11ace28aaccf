"""A job that saves each step to the memory of its pods: what it goes on from, as its status says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos import memory_train
from tests.e2e.job import TORCHRUN, JobRun, apart, change

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.matrix]

NO_END = "1000000"
DRAINING_SECONDS = 4.0
"""After so many in a round the operator has heard that all ranks call ``should_stop``."""
STEP_SECONDS = 0.05


def resumed(job: JobRun, number: int) -> dict[str, Any]:
    """What the status says of how this round has begun."""

    def said() -> dict[str, Any]:
        found = [entry for entry in job.rounds() if entry["number"] == number]
        return dict(found[0].get("resumed", {})) if found else {}

    return dict(job.wait_for(said, f"the status says what round {number} was resumed from"))


def trains_on(job: JobRun, number: int, ranks: int) -> None:
    """Wait until the round may drain."""
    least = ranks * DRAINING_SECONDS / STEP_SECONDS
    job.wait_for(lambda: len(job.steps(number)) > least, f"round {number} has made many steps")


def running(job: JobRun) -> list[str]:
    """Without the pod that was killed, which is kept for its logs."""
    return [name for name, pod in job.pods().items() if pod["status"].get("phase") == "Running"]


def stored(job: JobRun) -> list[str]:
    return sorted(path.parent.name for path in (job.folder / "saves").glob("checkpoint-*/complete.json"))


def begin(job: JobRun) -> None:
    """Two pods train, and the round may drain."""
    (job.folder / "saves").mkdir(parents=True)
    script = str(Path(memory_train.__file__))
    job.apply(
        [*TORCHRUN, script, str(job.folder), NO_END, str(STEP_SECONDS)],
        pod=apart(job),
        replicas=2,
        memoryCheckpoints={"perPod": "256Mi"},
        scaling={"scaleUpDelaySeconds": 0},
    )
    job.training(1, members=2)
    trains_on(job, 1, 2)


def test_a_loss_and_growth_go_on_from_memory_and_a_suspension_from_the_folder(job: JobRun) -> None:
    begin(job)
    job.kill_pod(job.member(1)["podName"])
    lost = job.training(2, members=2)["number"]
    after_loss = resumed(job, lost)
    assert after_loss["from"] in ("Memory", "Peer")
    assert after_loss["redoneSteps"] <= 1

    trains_on(job, lost, 2)
    job.scale(3)
    grown = job.training(lost + 1, members=3)["number"]
    after_growth = resumed(job, grown)
    assert job.rounds()[-1]["drain"] == "Stopped"
    assert (after_growth["from"] in ("Memory", "Peer"), after_growth["redoneSteps"]) == (True, 0)
    assert stored(job) == [], "all pods lived on: memory is enough"

    trains_on(job, grown, 3)
    change(job, suspend=True)
    job.wait_for(lambda: not running(job), "all pods have ended, and their memory with them")
    assert len(stored(job)) == 1
    change(job, suspend=False)
    again = job.training(grown + 1, members=3)["number"]
    after_suspension = resumed(job, again)
    assert (after_suspension["from"], after_suspension["redoneSteps"]) == ("Storage", 0)
    job.stop()
    job.complete()


def test_a_suspension_right_after_growth_waits_for_the_folder(job: JobRun) -> None:
    """The steps since the last save to the folder were in the memory of the pods alone, which ended."""
    begin(job)
    job.scale(3)
    job.wait_for(lambda: job.round()["number"] == 2, "the next round")
    change(job, suspend=True)
    job.wait_for(lambda: not running(job), "all pods have ended, and their memory with them")
    assert len(stored(job)) == 1
    change(job, suspend=False)
    job.training(3, members=3)
    assert resumed(job, 3)["redoneSteps"] == 0
    assert [entry.get("drain") for entry in job.rounds()] == [None, "Stopped", "Stopped"]
    job.stop()
    job.complete()
