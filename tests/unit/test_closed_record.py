"""What the round Lease says of a job that has ended."""

from __future__ import annotations

from elasticjob.rounds.causes import Cause
from tests.scenarios.world import World


def test_a_round_is_not_closed_for_what_it_was_formed_for() -> None:
    """It was formed after a hang, and the job fails for something else. At the word Hang every agent would
    dump its workers' stacks and abort them."""
    w = World().play(
        "job replicas=2 hang=600",
        "ends deadline=2000",
        "start mnist-0-0 mnist-1-0",
        "establish",
        "progress 0",
        "wait 660",
        "report mnist-0-0 established=yes hung=600",
        "fail mnist-0-0 mnist-1-0",
        "establish",
    )
    assert w.status.current_round.cause == Cause.HANG
    w.play("wait 2000")
    assert w.record is not None
    assert (w.record.number, w.record.phase, w.record.outcome) == (2, "Closed", "Failed")
    assert w.record.cause == ""
    assert "activeDeadlineSeconds" in w.record.message


def test_pods_that_have_ended_with_their_job_are_counted_no_more() -> None:
    """What an autoscaler and ``kubectl get`` read of a job that is over."""
    w = World().play("job replicas=2", "limit application 0", "start mnist-0-0 mnist-1-0", "establish")
    assert w.status.replicas == 2
    w.play("fail mnist-0-0", "fail mnist-1-0")
    assert w.status.is_true("Failed")
    w.play("exit mnist-0-0 1", "gone mnist-1-0", "wait 2")
    assert w.status.replicas == 0
