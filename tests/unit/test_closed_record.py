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
