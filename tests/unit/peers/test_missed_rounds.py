"""I4: numbers of rounds that there may have been, and that the record does not know, are left out."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.peers.settled import made_again
from tests.unit.peers.table import Table


def test_a_record_that_has_missed_rounds_leaves_out_all_of_their_numbers() -> None:
    """It was made again by one that has heard of round 1 alone. The members of round 3 have announced
    themselves after round 2, as those that wait for round 3 have."""
    for phase in ("Active", "Broken"):
        table = Table(minimum=1, maximum=3, last_call=0)
        table.train("pod-0", "pod-1", "pod-2")
        table.settled = made_again(
            replace(table.settled, state=replace(table.settled.state, phase=phase)), sure=False
        )
        for name in ("pod-1", "pod-2"):
            table.join(name)
            member = replace(table.peers[name].record, seen_round=2)
            table.peers[name] = replace(table.peers[name], record=member)
        table.look()
        assert table.told[:2] == (3, "Broken")
        table.join("pod-0")
        waiting = table.look(after=60).waiting
        assert "pod-1, pod-2 may be in a round that is not known any more" in waiting
        table.join("pod-1", "pod-2")
        table.look()
        assert (table.told, table.settled.unsure, table.settled.left_out) == ((4, "Active", ""), False, False)


def test_no_number_is_left_out_before_all_can_be_read() -> None:
    """pod-1 is in a round, and a user has written over its announcement: which rounds it has seen is not
    known until it renews its Lease."""
    table = Table(minimum=1, maximum=2, last_call=0)
    table.train("pod-0", "pod-1")
    state = replace(table.settled.state, phase="Broken")
    table.settled = made_again(replace(table.settled, state=state), sure=False)
    member = replace(table.peers["pod-1"], record=replace(table.peers["pod-1"].record, seen_round=2))
    del table.peers["pod-1"]
    table.unreadable = frozenset({"pod-1"})
    before = table.settled.order
    assert "pod-1 may be in a round that is not known any more" in table.look().waiting
    assert table.settled.order == before
    table.peers["pod-1"], table.unreadable = member, frozenset()
    table.look()
    assert table.told[:2] == (3, "Broken")
