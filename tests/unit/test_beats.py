"""The judge of beats: who is lost, and above all who is not."""

from __future__ import annotations

from elasticjob.core.beats import BeatJudge, Probe


def judge(heartbeat: float = 10.0, stall: float = 30.0) -> BeatJudge:
    return BeatJudge([1, 2], heartbeat, stall, now=0.0)


def silent(seconds: int, probe: Probe) -> BeatJudge:
    """Rank 1 never beats and its port answers ``probe``; rank 2 beats."""
    j = judge()
    for t in range(1, seconds + 1):
        for rank in j.tick(float(t), {2: t}):
            j.probed(float(t), rank, probe)
    return j


def test_a_refused_connection_is_a_loss_within_3_s() -> None:
    assert not silent(2, Probe.REFUSED).lost
    assert list(silent(3, Probe.REFUSED).lost) == [1]


def test_no_answer_is_a_loss_after_the_heartbeat_timeout() -> None:
    assert not silent(9, Probe.SILENT).lost
    assert list(silent(10, Probe.SILENT).lost) == [1]


def test_a_machine_that_stalls_and_lives_is_borne_longer() -> None:
    assert not silent(29, Probe.ACCEPTED).lost
    assert list(silent(30, Probe.ACCEPTED).lost) == [1]


def test_a_beat_starts_the_clock_again() -> None:
    j = judge()
    for t in range(1, 60):
        count = t // 8  # a beat every 8 s, the path is silent in between
        for rank in j.tick(float(t), {1: count, 2: t}):
            assert not j.probed(float(t), rank, Probe.SILENT)


def test_a_judge_that_was_stalled_itself_starts_again() -> None:
    """I9: a leader that was frozen for a minute accuses nobody of its own silence."""
    j = judge()
    j.tick(1.0, {1: 1, 2: 1})
    assert j.tick(61.0, {1: 1, 2: 1}) == []
    assert not j.probed(61.0, 1, Probe.SILENT)
    assert not j.lost


def test_a_verdict_stays_and_is_said_once() -> None:
    j = silent(3, Probe.REFUSED)
    assert j.tick(4.0, {1: 5, 2: 4}) == []
    assert 1 in j.lost
