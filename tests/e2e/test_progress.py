"""Reported steps: a hang is noticed and explained, and goodput is known."""

from __future__ import annotations

import pytest

from tests.e2e.job import SCRIPTS, TORCHRUN, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


@pytest.mark.slow
# shows: training hangs: no step for `hangTimeoutSeconds`
def test_a_hang_is_broken_up_and_leaves_every_worker_s_stack_in_the_log(job: JobRun) -> None:
    job.apply(
        [*TORCHRUN, str(SCRIPTS / "hangs.py"), str(job.folder)],
        failurePolicy={"hangTimeoutSeconds": 4, "application": {"maxRestarts": 3, "windowSeconds": 3600}},
    )
    job.training(2, members=2)
    second = job.rounds()[1]
    assert (second["cause"], second["account"]) == ("Hang", "application")
    assert "no step after step 40" in second["message"]
    assert second["detectMilliseconds"] >= 4000
    for pod in ("job-0-0", "job-1-0"):
        log = job.log(pod)
        assert "most recent call first" in log, f"{pod} has no stack dump"
        assert "hangs.py" in log
    stuck = [pod for pod in ("job-0-0", "job-1-0") if "stuck_for_ever" in job.log(pod)]
    assert len(stuck) == 1, "and it tells which rank did not come"
    assert [a["used"] for a in job.status()["accounts"] if a["name"] == "application"] == [1]
    assert set(job.pods()) == {"job-0-0", "job-1-0"}, "no pod was replaced"
    progress = job.wait_for(
        lambda: _in_round(job, 2), "the second round's first step is in the status", seconds=60
    )
    assert job.rounds()[1]["firstStep"] == 41, "it resumed from its checkpoint"
    assert {entry["cause"] for entry in progress["lostByCause"]} == {"Started", "Hang"}
    assert 0 <= progress["goodputPercent"] < 100
    first, second = job.rounds()
    assert first["lastStep"] == 40
    assert first["firstStepMilliseconds"] >= first["rendezvousMilliseconds"]
    assert second["firstStepMilliseconds"] >= second["rendezvousMilliseconds"]
    job.stop()
    job.complete()
    assert job.status()["progress"]["step"] > 41


def _in_round(job: JobRun, number: int) -> dict[str, object]:
    """status.progress, once a step of this round is reported."""
    status = job.status()
    entries = [entry for entry in status.get("roundHistory", ()) if entry["number"] == number]
    found: dict[str, object] = status["progress"] if entries and "firstStep" in entries[0] else {}
    return found
