"""The judge of heartbeats: which members are lost, and above all which are not."""

from __future__ import annotations

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.core.beats import BeatJudge, Probe


def judge(heartbeat: float = 10.0, stall: float = 30.0) -> BeatJudge:
    return BeatJudge([1, 2], Limits(heartbeat_timeout=heartbeat, stall_timeout=stall), now=0.0)


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
    """I9: a leader that was frozen for a minute accuses no member of its own silence."""
    j = judge()
    j.tick(1.0, {1: 1, 2: 1})
    assert j.tick(61.0, {1: 1, 2: 1}) == []
    assert not j.probed(61.0, 1, Probe.SILENT)
    assert not j.lost


def test_a_verdict_stays_and_is_said_once() -> None:
    j = silent(3, Probe.REFUSED)
    assert j.tick(4.0, {1: 5, 2: 4}) == []
    assert 1 in j.lost


@pytest.mark.parametrize(
    ("probe", "heartbeat", "limit"),
    [(Probe.REFUSED, 10.0, 3), (Probe.SILENT, 10.0, 10), (Probe.SILENT, 3.0, 3), (Probe.ACCEPTED, 10.0, 30)],
)
def test_members_of_one_lost_node_are_named_together(probe: Probe, heartbeat: float, limit: int) -> None:
    """Their last beats are a tick apart: the first verdict ends the round, so it waits for the second."""
    j = judge(heartbeat)
    named: list[list[int]] = []
    for t in range(1, limit + 5):
        now = t + 0.4  # what the probes take
        suspects = j.tick(float(t), {1: min(t, 1), 2: min(t, 2)})
        if lost := [rank for rank in suspects if j.probed(now, rank, probe)]:
            named.append(lost)
    assert named == [[1, 2]]


def test_a_verdict_waits_for_others_one_beat_at_most() -> None:
    """Rank 2 beats every other second: it keeps no other from being lost."""
    j = judge()
    at = next(
        t
        for t in range(1, 60)
        if [r for r in j.tick(float(t), {1: 0, 2: t // 2}) if j.probed(float(t), r, Probe.SILENT)] == [1]
    )
    assert at <= 11


def test_all_that_is_judged_by_heartbeats_follows_their_period() -> None:
    slow = BeatJudge([1], Limits(heartbeat_period=5, heartbeat_timeout=15), now=0.0)
    probed = [second for second in range(1, 20) if slow.tick(float(second), {})]
    assert probed == list(range(13, 20)), "two heartbeats and a half were missed"
    assert slow.probed(19.0, 1, Probe.REFUSED)


def test_who_accepts_connections_is_borne_for_no_shorter_than_who_does_not_answer() -> None:
    j = judge(heartbeat=20.0, stall=5.0)
    for t in range(1, 20):
        j.tick(float(t), {2: t})
        assert not j.probed(float(t), 1, Probe.ACCEPTED)
