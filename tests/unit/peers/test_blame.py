"""Who is blamed for the end of a round: a report that was wrong is dropped, and the reason is corrected."""

from __future__ import annotations

from tests.unit.peers.table import Table

OTHERS = ("pod-1", "pod-2", "pod-3")


def cut_off_leader() -> Table:
    """Round 1 of four: the leader is cut off from the others, and says so of them a moment before they
    do."""
    table = Table(minimum=2, maximum=4, last_call=1)
    table.train("pod-0", *OTHERS)
    table.report("pod-0", established=True, silent_ranks=(1, 2, 3))
    table.look()
    assert table.told == (1, "Broken", "Unreachable")
    return table


def accuse(table: Table, *names: str) -> None:
    """These cannot reach the leader."""
    for name in names:
        table.report(name, leader_lost=True)


def test_those_who_are_believed_are_not_lost_because_the_leader_rejoins_first() -> None:
    """Its report stands in its Lease as long as the round is the last one."""
    table = cut_off_leader()
    accuse(table, *OTHERS)
    table.look(after=0.1)
    table.join("pod-0")
    table.look(after=0.1)
    table.look(after=0.1)
    assert [m.state for m in table.settled.state.members] == ["Left", "Member", "Member", "Member"]
    table.join(*OTHERS)
    table.look(after=0.1)
    assert (len(table.members), table.settled.kept_out) == (4, ())


def test_what_a_leader_said_that_was_cut_off_is_forgotten() -> None:
    """Or else the next one that is cut off would have them all lost, and kept out, and train alone."""
    for first in ("accused", "rejoined"):
        table = cut_off_leader()
        steps = [lambda t=table: t.join("pod-0"), lambda t=table: accuse(t, *OTHERS)]
        for step in steps if first == "rejoined" else reversed(steps):
            step()
            table.look(after=0.1)
        assert [r.name for r in table.settled.state.unreachable_reports if r.name in OTHERS] == []
        table.join(*OTHERS)
        table.look(after=0.1)
        assert table.told[:2] == (2, "Active")
        table.report(table.members[0], established=True)
        table.look(after=60.0)
        leader, *rest = table.members
        table.report(leader, established=True, silent_ranks=(1, 2, 3))
        table.look(after=60.0)
        accuse(table, *(name for name in rest if name != "pod-0"))
        table.look(after=0.1)
        assert {m.name for m in table.settled.state.members if m.state == "Lost"} <= {"pod-0"}
        assert leader in table.settled.state.ineligible_leaders


def test_those_who_are_believed_correct_what_the_leader_has_said() -> None:
    table = cut_off_leader()
    assert "pod-1 (group rank 1) was unreachable" in table.settled.message
    accuse(table, *OTHERS)
    table.look(after=0.1)
    assert table.told == (1, "Broken", "LeaderUnreachable")
    assert table.settled.message.startswith("the leader pod-0 cannot be reached by 3 of 3 other members")
    table.join("pod-0", *OTHERS)
    table.look(after=0.1)
    assert (table.number, table.settled.message[:16]) == (2, "the leader pod-0")


def survivor_fails(minimum: int = 2) -> Table:
    """Round 1 of three: nothing is known yet but that a worker of pod-0 has failed."""
    table = Table(minimum, last_call=1)
    table.train("pod-0", "pod-1", "pod-2")
    table.join("pod-0")
    table.fail("pod-0", "connection reset by peer")
    table.look()
    assert table.settled.message == "a worker of pod-0 failed: connection reset by peer"
    return table


def test_the_end_of_a_pod_explains_the_failure_of_a_survivor() -> None:
    table = survivor_fails()
    table.gone = {table.peers["pod-1"].key: "its port refuses connections"}
    table.look(after=1.0)
    assert table.told == (1, "Broken", "PodLost")
    table.join("pod-2")
    table.look(after=0.1)
    assert table.told[:2] == (2, "Active")
    assert table.settled.message == "pod-1: its port refuses connections"


def test_one_that_ends_after_its_own_failure_or_after_it_has_left_explains_nothing() -> None:
    """Nor does the end of a pod explain a round that has ended so that it grows."""
    table = survivor_fails(minimum=3)
    table.fail("pod-1", "ValueError")
    table.look(after=0.1)
    table.join("pod-2")
    table.look(after=0.1)
    table.gone = {table.peers[name].key: "its pod has ended" for name in ("pod-1", "pod-2")}
    table.look(after=0.1)
    assert table.told == (1, "Broken", "WorkerFailed")
    assert table.settled.message == "a worker of pod-0 failed: connection reset by peer"
    grows = Table(maximum=4, last_call=1)
    grows.train("pod-0", "pod-1", "pod-2")
    grows.join("pod-3")
    grows.look()
    assert grows.told == (1, "Broken", "ScaledUp")
    grows.gone = {grows.peers["pod-1"].key: "its pod has ended"}
    grows.look(after=0.1)
    assert (grows.told, grows.settled.message) == ((1, "Broken", "ScaledUp"), "pod-3 joined")
