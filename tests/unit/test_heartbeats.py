"""The heartbeat monitor: which members are lost, and above all which are not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from elasticjob.contract.limits import Limits
from elasticjob.core.heartbeats import HeartbeatMonitor, ProbeResult


def monitor(heartbeat: float = 10.0, stall: float = 30.0) -> HeartbeatMonitor:
    return HeartbeatMonitor([1, 2], Limits(heartbeat_timeout=heartbeat, stall_timeout=stall), now=0.0)


def silent(seconds: int, probe: ProbeResult) -> HeartbeatMonitor:
    """Rank 1 sends no heartbeat and its port answers ``probe``; rank 2 sends them."""
    j = monitor()
    for t in range(1, seconds + 1):
        for rank in j.tick(float(t), {2: t}):
            j.record_probe(float(t), rank, probe)
    return j


def test_a_refused_connection_is_a_loss_within_3_s() -> None:
    assert not silent(2, ProbeResult.REFUSED).lost
    assert list(silent(3, ProbeResult.REFUSED).lost) == [1]


def test_no_answer_is_a_loss_after_the_heartbeat_timeout() -> None:
    assert not silent(9, ProbeResult.SILENT).lost
    assert list(silent(10, ProbeResult.SILENT).lost) == [1]


def test_a_machine_that_stalls_and_lives_is_borne_longer() -> None:
    assert not silent(29, ProbeResult.ACCEPTED).lost
    assert list(silent(30, ProbeResult.ACCEPTED).lost) == [1]


def test_a_heartbeat_starts_the_clock_again() -> None:
    j = monitor()
    for t in range(1, 60):
        count = t // 8  # a heartbeat every 8 s, nothing arrives in between
        for rank in j.tick(float(t), {1: count, 2: t}):
            assert not j.record_probe(float(t), rank, ProbeResult.SILENT)


def test_a_monitor_that_was_stalled_itself_starts_again() -> None:
    """I9: a leader that was frozen for a minute accuses no member of its own silence."""
    j = monitor()
    j.tick(1.0, {1: 1, 2: 1})
    assert j.tick(61.0, {1: 1, 2: 1}) == []
    assert not j.record_probe(61.0, 1, ProbeResult.SILENT)
    assert not j.lost


def test_a_monitor_that_was_stalled_before_an_early_look_starts_again() -> None:
    """The look was due soon after the tick: that much of a long period passes for no stall."""
    j = HeartbeatMonitor([1], Limits(heartbeat_period=60, heartbeat_timeout=180), now=0.0)
    for now in (60.0, 120.0, 150.1):
        j.tick(now, {})
    assert j.next_look() == 180.0
    assert j.tick(209.0, {}) == []
    assert not j.record_probe(209.5, 1, ProbeResult.SILENT)


def test_a_verdict_stays_and_is_said_once() -> None:
    j = silent(3, ProbeResult.REFUSED)
    assert j.tick(4.0, {1: 5, 2: 4}) == []
    assert 1 in j.lost


@pytest.mark.parametrize(
    ("probe", "heartbeat", "limit"),
    [
        (ProbeResult.REFUSED, 10.0, 3),
        (ProbeResult.SILENT, 10.0, 10),
        (ProbeResult.SILENT, 3.0, 3),
        (ProbeResult.ACCEPTED, 10.0, 30),
    ],
)
def test_members_of_one_lost_node_are_named_together(
    probe: ProbeResult, heartbeat: float, limit: int
) -> None:
    """Their last heartbeats are a tick apart: the first verdict ends the round, so it waits for the
    second."""
    j = monitor(heartbeat)
    named: list[list[int]] = []
    for t in range(1, limit + 5):
        now = t + 0.4  # what the probes take
        suspects = j.tick(float(t), {1: min(t, 1), 2: min(t, 2)})
        if lost := [rank for rank in suspects if j.record_probe(now, rank, probe)]:
            named.append(lost)
    assert named == [[1, 2]]


def ticks(j: HeartbeatMonitor, until: float) -> Iterator[float]:
    """The times of ticks as the heartbeat thread has them: each period, and when a suspicion is due."""
    now, answer = 0.0, 0.01
    while now < until:
        now = min(now + 1.0, max(now, j.next_look())) + answer
        yield now


@pytest.mark.parametrize(("probe", "limit"), [(ProbeResult.REFUSED, 2.5), (ProbeResult.SILENT, 10.3)])
@pytest.mark.parametrize("last", [1.0, 2.0, 5.0])
def test_a_peer_is_lost_as_soon_as_it_may_be(last: float, probe: ProbeResult, limit: float) -> None:
    """Not with the heartbeat after that, up to a second later."""
    j = monitor(heartbeat=10.3)
    lost = [
        now
        for now in ticks(j, 20.0)
        for rank in j.tick(now, {1: int(min(now, last)), 2: int(now * 100)})
        if j.record_probe(now, rank, probe)
    ]
    assert lost == [pytest.approx(last + limit, abs=0.1)]


def test_peers_that_are_heard_cause_no_further_ticks() -> None:
    j = monitor()
    for second in range(1, 20):
        j.tick(float(second), {1: second, 2: second})
        assert j.next_look() > second + 1.0
    assert silent(20, ProbeResult.ACCEPTED).next_look() > 21.0, "a suspect is probed with each tick"


def test_members_of_one_lost_node_are_named_together_where_the_first_is_suspect_between_heartbeats() -> None:
    """The answer with the last heartbeat of the second came late, so that it has been silent for less than a
    period and a half."""
    j = monitor()
    named: list[list[int]] = []
    for now in (1.0, 2.2, 3.0, 3.51, 4.51, 4.71):
        suspects = j.tick(now, {1: 1, 2: min(int(now), 2)})
        if lost := [rank for rank in suspects if j.record_probe(now, rank, ProbeResult.REFUSED)]:
            named.append(lost)
        if now == 3.0:
            assert j.next_look() == 3.5
    assert named == [[1, 2]]


def test_a_member_that_becomes_suspect_while_the_other_is_probed_is_named_with_it() -> None:
    """The look comes a moment before the second is suspect, and the probe ends a moment after that."""
    j = monitor()
    named: list[list[int]] = []
    heard = {1.001: {1: 1, 2: 1}, 2.005: {2: 2}}
    for now in (1.001, 2.005, 3.002, 3.503, 4.502, 4.507):
        suspects = j.tick(now, heard.get(now, {}))
        if lost := [rank for rank in suspects if j.record_probe(now + 0.005, rank, ProbeResult.REFUSED)]:
            named.append(lost)
    assert named == [[1, 2]]


@pytest.mark.parametrize(
    ("probe", "takes"),
    [(ProbeResult.REFUSED, 0.003), (ProbeResult.REFUSED, 0.5), (ProbeResult.SILENT, 0.5)],
)
def test_members_of_one_lost_node_are_named_together_whenever_they_were_heard(
    probe: ProbeResult, takes: float
) -> None:
    """Eight members whose last heartbeats are up to a period apart, at random; the waits of the thread are
    now and then a little too short, and an answer takes some milliseconds."""
    rng = random.Random(5)
    for _ in range(300):
        ranks = range(1, 9)
        phases = {rank: rng.random() for rank in ranks}
        died = 3.0 + rng.random()
        j = HeartbeatMonitor(ranks, Limits(), now=0.0)
        named: list[list[int]] = []
        now, ready = 0.0, 0.0
        while now < 20.0 and len(j.lost) < 8:
            due = min(now + 1.0, j.next_look()) + rng.uniform(-0.0005, 0.002)
            now = max(due, ready) + rng.uniform(0.0005, 0.005)
            suspects = j.tick(now, {rank: int(min(now, died) - phases[rank] + 1) for rank in ranks})
            ready = now + takes * bool(suspects)
            if lost := [rank for rank in suspects if j.record_probe(ready, rank, probe)]:
                named.append(lost)
        assert len(named) == 1
        assert sorted(named[0]) == list(ranks)


def test_a_heartbeat_that_comes_while_another_port_is_probed_is_not_missed() -> None:
    """Rank 2 sends one a moment after the look: when the probe ends it has been read a second and a half
    ago."""
    j = monitor()
    named = []
    for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0):
        suspects = j.tick(now, {1: 0, 2: int(now - 0.01) if now == 10.0 else int(now)})
        named += [(now, rank) for rank in suspects if j.record_probe(now + 0.5, rank, ProbeResult.SILENT)]
    assert named == [(10.0, 1)]


def test_others_that_are_late_delay_a_verdict_for_a_period_and_a_quarter_at_most() -> None:
    """Many members whose heartbeats come more than a period late: some are always missed."""
    j = HeartbeatMonitor(range(1, 22), Limits(), now=0.0)
    lost = [
        now
        for now in ticks(j, 12.0)
        for rank in j.tick(now, {1: 0, **{rank: int((now + rank * 0.12) / 2.3) for rank in range(2, 22)}})
        if j.record_probe(now, rank, ProbeResult.REFUSED) and rank == 1
    ]
    assert lost == [pytest.approx(3.75, abs=0.1)]


def test_a_verdict_waits_for_others_one_heartbeat_at_most() -> None:
    """Rank 2 sends a heartbeat every other second: it keeps no other from being lost."""
    j = monitor()
    at = next(
        t
        for t in range(1, 60)
        if [r for r in j.tick(float(t), {1: 0, 2: t // 2}) if j.record_probe(float(t), r, ProbeResult.SILENT)]
        == [1]
    )
    assert at <= 11


def test_all_that_is_judged_by_heartbeats_follows_their_period() -> None:
    slow = HeartbeatMonitor([1], Limits(heartbeat_period=5, heartbeat_timeout=15), now=0.0)
    probed = [second for second in range(1, 20) if slow.tick(float(second), {})]
    assert probed == list(range(13, 20)), "two heartbeats and a half were missed"
    assert slow.record_probe(19.0, 1, ProbeResult.REFUSED)


def test_who_accepts_connections_is_borne_for_no_shorter_than_who_does_not_answer() -> None:
    j = monitor(heartbeat=20.0, stall=5.0)
    for t in range(1, 20):
        j.tick(float(t), {2: t})
        assert not j.record_probe(float(t), 1, ProbeResult.ACCEPTED)
