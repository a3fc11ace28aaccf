"""A job in a queue of the real Kueue: it waits, starts, gives back what it has borrowed without losing a
step, and grows again."""

from __future__ import annotations

import time

import pytest

from tests.e2e.job import JobRun
from tests.e2e.test_planned_changes import digits, drainable, steps_once
from tests.kueue.stage import REQUESTS, Stage, labels

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(1800)]


def ranks(job: JobRun) -> dict[str, int]:
    return {p["podName"]: p["groupRank"] for p in job.status()["participants"] if "groupRank" in p}


def trains_with(job: JobRun, members: int) -> int:
    """Wait until a round of this size has met and can be drained; returns its number."""

    def found() -> int:
        now = job.round()
        met = now.get("phase") == "Active" and "establishedTime" in now
        return int(now["number"]) if met and now["members"] == members else 0

    number = int(job.wait_for(found, f"a round of {members} has met"))
    drainable(job, number, members)
    return number


def test_a_job_gives_back_what_its_lender_wants_and_loses_no_step(stage: Stage, job: JobRun) -> None:
    """Queue a has a quota for two pods and borrows one from queue b."""
    job.deadline = 600.0  # real workers, beside whatever else the machine does
    flavor = stage.flavor()
    stage.queue("a", 2, flavor)
    stage.queue("b", 1, flavor)
    stage.ask("before-it", "a", 3, priority=1000)
    job.wait_for(lambda: stage.admitted("before-it"), "another has all of the quota")
    log = job.folder / "log.jsonl"
    job.labels = labels("a")
    job.resources = {"requests": REQUESTS}
    job.apply(digits(job, log), replicas=3, minReplicas=2, scaling={"scaleUpDelaySeconds": 0})

    said = job.says("waiting for queue a to admit 2 pods: couldn't assign flavors to pod set main")
    assert "insufficient unused quota" in said
    assert job.condition("Training")["reason"] == job.condition("Suspended")["reason"] == "Queued"
    assert job.pods() == {}
    assert job.told("JobQueued")

    stage.withdraw("before-it")
    trains_with(job, 3)
    job.wait_for(lambda: stage.used("a") == 3, "it has borrowed")
    before = ranks(job)

    asked = time.monotonic()
    stage.ask("lender", "b", 1)
    job.wait_for(lambda: stage.admitted("lender"), "the lender has its quota")
    print(f"the lender has its quota after {time.monotonic() - asked:.1f} s")
    assert len(job.pods()) <= 2, "no pod of the job uses what the lender has"
    trains_with(job, 2)
    assert ranks(job) == {pod: rank for pod, rank in before.items() if rank < 2}
    assert "queue a admits 2 of 3 pods" in job.says("queue a admits 2 of 3 pods")

    stage.withdraw("lender")
    asked = time.monotonic()
    trains_with(job, 3)
    print(f"at full size again after {time.monotonic() - asked:.1f} s")
    job.wait_for(lambda: stage.used("a") == 3, "the quota is its own again")
    causes = [(entry["cause"], entry["members"]) for entry in job.rounds()]
    assert ("ScaledDown", 2) in causes
    assert {entry["cause"] for entry in job.rounds()} <= {"Started", "ScaledUp", "ScaledDown"}
    ends = [entry.get("end", {}) for entry in job.status()["roundHistory"]]
    assert {end["drain"] for end in ends if end} == {"Stopped"}
    steps_once(log)


def test_the_whole_job_stops_for_a_higher_class_and_comes_back(stage: Stage, job: JobRun) -> None:
    job.deadline = 600.0
    stage.queue("a", 3, stage.flavor())
    log = job.folder / "log.jsonl"
    job.labels = labels("a", stage.priority_class(100))
    job.resources = {"requests": REQUESTS}
    job.apply(digits(job, log), replicas=3, minReplicas=2, scaling={"scaleUpDelaySeconds": 0})
    trains_with(job, 3)
    assert {name: one.priority for name, one in stage.of_job(job).items()} == {"base": 100, "x0": 99}

    stage.ask("urgent", "a", 3, priority=500)
    job.wait_for(lambda: stage.admitted("urgent"), "the other is admitted")
    assert job.pods() == {}
    assert list(stage.of_job(job)) == ["base"], "no extra is left without its base"
    assert job.condition("Training")["reason"] == "Queued"

    stage.withdraw("urgent")
    trains_with(job, 3)
    assert [entry.get("end", {}).get("cause") for entry in job.status()["roundHistory"]].count(
        "Suspended"
    ) == 1
    steps_once(log)
