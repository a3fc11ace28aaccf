"""When a job was started and completed, as in a batch/v1 Job, and for how long it was active."""

from __future__ import annotations

from datetime import timedelta

from elasticjob_operator.plan.state.status import JobStatus
from tests.scenarios.world import World

RUNS = ("job replicas=2", "start mnist-0-0 mnist-1-0", "establish")


def test_a_job_that_is_made_suspended_is_not_started() -> None:
    w = World()
    w.do("job replicas=2")
    w = w.play("suspend")
    assert (w.status.start_time, w.status.active_seconds) == (None, None)
    w.do("wait 30")
    w = w.play("resume")
    assert w.status.start_time == w.now().wall
    assert w.status.active_seconds is None


def test_a_suspended_job_has_no_start_and_a_resumed_one_a_new_one() -> None:
    w = World().play(*RUNS)
    first = w.status.start_time
    assert first is not None
    w = w.play("wait 100", "suspend")
    active = w.status.active_seconds
    assert w.status.start_time is None
    assert active is not None
    assert active >= 100
    w = w.play("gone mnist-0-0 mnist-1-0", "wait 1000", "resume")
    assert w.status.start_time is not None
    assert w.status.start_time - first >= timedelta(seconds=1100)
    assert w.status.active_seconds == active, "written when it is suspended again, or ends"
    w = w.play("wait 50", "suspend")
    assert active + 50 <= (w.status.active_seconds or 0) < active + 100


def test_only_a_job_that_is_complete_has_a_completion_time() -> None:
    done = World().play(
        *RUNS, "wait 60", "succeed mnist-0-0 mnist-1-0", "exit mnist-0-0 0", "exit mnist-1-0 0"
    )
    assert done.status.is_true("Complete")
    assert done.status.completion_time is not None
    assert done.status.end_time is not None
    assert abs(done.status.completion_time - done.status.end_time) < timedelta(seconds=1)
    assert (done.status.active_seconds or 0) >= 60
    failed = World().play("job replicas=2", "limit application 0", *RUNS[1:], "wait 60", "fail mnist-0-0")
    failed.play("fail mnist-1-0")
    assert failed.status.is_true("Failed")
    assert failed.status.completion_time is None
    assert failed.status.end_time is not None
    assert (failed.status.active_seconds or 0) >= 60


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    w = World().play(*RUNS)
    assert w.status.start_time is not None
    assert w.status.stopped(w.status.start_time - timedelta(hours=1)).active_seconds == 0
    assert JobStatus().stopped(w.status.start_time) == JobStatus()
