"""A pod that cannot reach its round must not keep the others from training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob.contract.fields import RecordError
from elasticjob.peers.kept_out import LONGEST_SECONDS, seconds
from elasticjob.peers.pacing import EARLY_SECONDS
from elasticjob.peers.records import KeptOut, RunState
from tests.unit.peers.table import Table

BAD = "pod-7"


def with_a_bad_path() -> Table:
    """A run of three; the fourth reaches the API server, and never the leader."""
    table = Table(minimum=2, maximum=4, last_call=0)
    table.join("pod-0", "pod-1", "pod-2")
    table.look()
    table.report("pod-0", established=True)
    table.look()
    table.join(BAD)
    return table


def go_on(table: Table, seconds: float) -> float:
    """Let it play, second by second; returns how many of them were trained."""
    trained = 0.0
    for _ in range(int(seconds)):
        table.look(after=1.0)
        r = table.settled.state
        if table.settled.closed:
            break
        if not r.active:
            table.join("pod-0", "pod-1", "pod-2", BAD)
            continue
        rank = {m.name: m.group_rank for m in r.members}
        if BAD not in rank:
            table.report("pod-0", established=True)
            trained += r.established is not None
            if table.peers[BAD].record.seen_round < r.number:
                table.join(BAD)
        elif table.now - table.round_began > 15:
            table.report("pod-0", unarrived_ranks=(rank[BAD],))
    return trained


def test_the_others_train_while_one_cannot_reach_them() -> None:
    table = with_a_bad_path()
    assert go_on(table, 3600.0) > 3000.0
    assert not table.settled.closed
    assert [seconds(one) for one in table.settled.kept_out] == [LONGEST_SECONDS]


def test_its_first_failures_end_two_rounds_and_later_ones_one() -> None:
    table = with_a_bad_path()
    go_on(table, 45.0)
    assert (table.number, table.settled.state.active, BAD in table.members) == (4, True, False)
    assert table.settled.kept_out == (KeptOut(table.peers[BAD].key),)
    go_on(table, EARLY_SECONDS + 25.0)
    assert (table.number, BAD in table.members) == (6, False)
    assert [(one.times, one.due) for one in table.settled.kept_out] == [(2, False)]


def test_once_it_has_arrived_it_is_one_of_them() -> None:
    table = with_a_bad_path()
    go_on(table, 45.0)
    for _ in range(int(EARLY_SECONDS) + 10):
        table.look(after=1.0)
        if not table.settled.state.active:
            table.join("pod-0", "pod-1", "pod-2", BAD)
    assert BAD in table.members
    table.report("pod-0", established=True)
    table.look()
    assert (table.settled.state.established is not None, table.settled.kept_out) == (True, ())


def test_it_is_taken_at_once_where_the_others_are_too_few() -> None:
    table = Table(minimum=2, maximum=2, last_call=0)
    table.train("pod-0", "pod-1")
    key = table.peers["pod-1"].key
    table.settled = replace(table.settled, kept_out=(KeptOut(key, 3),))
    table.join("pod-0", "pod-1")
    table.look()
    table.look()
    assert (table.number, table.members) == (2, ["pod-0", "pod-1"])


def test_its_time_goes_on_over_rounds_that_are_shorter() -> None:
    """Its path is well, and the rounds of the others end for other reasons, each before its time is over."""
    table = with_a_bad_path()
    go_on(table, 45.0)
    key = table.peers[BAD].key
    table.settled = replace(table.settled, kept_out=(KeptOut(key, times=4),))
    rounds, began = 0, table.now
    while BAD not in table.members:
        table.report(table.members[0], established=True)
        table.look(after=100.0)
        table.join("pod-1")
        table.look(after=0.1)
        table.join("pod-0", "pod-2", BAD)
        table.look(after=0.1)
        rounds += 1
        assert rounds < 10, "it starves"
    assert 480.0 <= table.now - began < 600.0
    table.report(table.members[0], established=True)
    table.look(after=1.0)
    assert table.settled.kept_out == ()


def test_it_is_forgotten_with_its_pod() -> None:
    table = with_a_bad_path()
    go_on(table, 45.0)
    del table.peers[BAD]
    table.leave("pod-1")
    table.look(after=90.0)
    assert table.settled.kept_out == ()


def test_the_next_coordinator_knows_it() -> None:
    state = RunState(number=3, kept_out=(KeptOut("uid-1", 2, True, 120), KeptOut("uid-2")))
    assert RunState.parse(state.dump()) == state
    for found, broken in (('"due"', '"dew"'), ('"120"', '"-1"')):
        with pytest.raises(RecordError, match="due or out"):
            RunState.parse(state.dump().replace(found, broken))
