"""What a series of kills counts, from logs that are written here."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.chaos.kills import (
    KINDS,
    LEADER,
    SIZE,
    WELL_STEPS,
    Kill,
    Planned,
    copying,
    curve,
    difference,
    goes_on,
    plan,
    reached,
    read,
    redone,
    skipped,
    told,
    violations,
)


def began(number: int, rank: int, step: int) -> dict[str, Any]:
    return {"round": number, "rank": rank, "resumed": step}


def trained(number: int, rank: int, step: int, loss: float = 1.0) -> dict[str, Any]:
    return {"round": number, "rank": rank, "step": step, "loss": loss, "ids": f"of {step}"}


def kill(steps: int = 0, *sources: str) -> Kill:
    return Kill("worker", 4, 2, (steps,), sources or ("Memory",))


def test_a_plan_has_each_kind_as_often_and_the_sizes_in_turns() -> None:
    planned = plan(3, 16, (4, 3, 5), 4)
    assert Counter(one.kind for one in planned) == dict.fromkeys(KINDS, 4)
    assert [one.pods for one in planned] == [4] * 4 + [3] * 4 + [5] * 4 + [4] * 4
    assert planned == plan(3, 16, (4, 3, 5), 4) != plan(4, 16, (4, 3, 5), 4)
    assert isinstance(planned[0], Planned)
    drawn = plan(3, 400, (4, 3, 5), 4)
    assert {(one.pods, one.rank) for one in drawn} == {(n, rank) for n in (4, 3, 5) for rank in range(n)}
    assert {one.rank for one in drawn if one.kind == LEADER} == {0}
    assert {one.steps for one in drawn} == {*range(WELL_STEPS[0], WELL_STEPS[1] + 1)}


def test_a_line_that_is_being_written_is_left_out() -> None:
    line = json.dumps(trained(1, 0, 1))
    assert read(line + "\n" + line[:9]) == [trained(1, 0, 1)]
    assert read("") == []


def test_what_was_reached_is_what_any_rank_has_trained() -> None:
    assert reached([trained(1, 0, 4), trained(1, 1, 5), began(2, 0, 4)]) == 5
    assert reached([]) == 0


def test_a_round_goes_on_when_all_of_its_ranks_have_trained() -> None:
    lines = [trained(1, 0, 5), trained(1, 1, 5), began(2, 0, 5), began(2, 1, 5), trained(2, 0, 6)]
    assert not goes_on(lines[:2], 1, 2)
    assert not goes_on(lines, 1, 2)
    assert goes_on([*lines, trained(2, 1, 6)], 1, 2)
    assert not goes_on([*lines, trained(2, 1, 6), trained(3, 0, 7)], 1, 2), "round 2 has ended since"


def test_a_round_has_redone_what_an_earlier_one_had_trained() -> None:
    """Round 3 has come to no step; round 4 is that of the replacement."""
    lines = [trained(1, 0, 5), trained(1, 1, 6), began(2, 0, 5), trained(2, 0, 6), trained(2, 0, 9)]
    lines += [began(3, 0, 9), began(4, 0, 9), began(4, 1, 9), trained(4, 0, 10)]
    assert redone(lines, 1) == (1, 0)
    assert redone(lines, 2) == (0,)
    assert redone(lines[:2], 1) == ()
    with pytest.raises(ValueError, match=r"round 2 have resumed from \{0: 5, 1: 4\}"):
        redone([*lines, began(2, 1, 4)], 1)


def line(step: int, count: int, late: bool = False, rank: int = 0) -> dict[str, Any]:
    return {**trained(2, rank, step), "skipped": count, "copying": late}


def test_saves_that_were_skipped_before_the_end_are_counted() -> None:
    lines = [began(2, 0, 4), line(5, 0), line(6, 1), line(7, 1), line(8, 2), line(9, 3)]
    assert skipped(lines, 2) == 2
    assert skipped(lines[:4], 2) == 0
    assert skipped(lines[:3], 2) == 1
    assert skipped(lines, 3) == 0
    assert skipped([line(5, 0), line(6, 0)], 2) == 0
    assert skipped([*lines, line(10, 4)], 2) == 3


def test_a_kill_before_a_save_that_would_have_been_skipped_is_known() -> None:
    assert copying([line(5, 0), line(6, 0, late=True)], 2), "the save of step 5 is not complete"
    assert copying([line(5, 0), line(6, 0), line(6, 0, late=True, rank=1)], 2)
    assert copying([line(5, 0), line(5, 0, rank=1), line(6, 0)], 2), "rank 1 could not say it"
    assert not copying([line(5, 0, late=True), line(6, 0)], 2)
    assert not copying([line(5, 0, late=True)], 3)


def test_of_a_step_that_was_redone_the_last_counts() -> None:
    lines = [trained(1, 0, 1, 3.0), trained(2, 0, 1, 2.0), trained(1, 1, 1, 3.0)]
    assert curve(lines)[1]["loss"] == 2.0


def test_the_curve_is_compared_with_that_of_the_undisturbed_run() -> None:
    whole = [trained(1, 0, 1, 3.0), trained(1, 0, 2, 2.0)]
    assert difference(whole, [*whole, trained(1, 0, 3)]) == (0.0, [])
    assert difference([whole[0], trained(2, 0, 2, 2.5)], whole) == (
        0.5,
        ["a loss differs by 0.5, expected at most 1e-05"],
    )
    assert difference([whole[1]], whole)[1] == ["nobody has trained the steps [1]"]
    assert difference(whole, whole[:1])[1] == ["2 steps were trained, and 1 in the undisturbed run"]
    assert difference([], whole)[1] == ["0 steps were trained, and 2 in the undisturbed run"]
    other = [{**whole[0], "ids": "x"}]
    assert difference(other, whole)[1] == ["step 1 had the samples x, expected of 1"]


def test_one_step_may_be_redone_and_nothing_is_read_from_the_storage() -> None:
    assert violations([kill(0), kill(1, "Peer"), kill(1, "Memory", "Memory")]) == []
    assert violations([kill(), kill(2)]) == [
        "kill 2 (worker, 4 pods, round 2): 2 steps were redone, expected at most 1"
    ]
    assert violations([Kill("node", 3, 4, (0, 1, 1), ("Peer",) * 3)]) == [
        "kill 1 (node, 3 pods, round 4): 2 steps were redone, expected at most 1"
    ]
    assert violations([Kill("agent", 4, 2, (3,), ("Peer",), skipped=2)]) == []
    assert violations([Kill("agent", 4, 2, (2,), ("Peer",), copying=True)]) == []
    assert violations([Kill(SIZE, 3, 2, (0,), ("Storage",)), Kill(SIZE, 5, 3, (1,), ("Memory",))]) == [
        "kill 2 (change of size, 5 pods, round 3): 1 steps were redone, expected at most 0"
    ]
    assert violations([kill(-1)]) == [
        "kill 1 (worker, 4 pods, round 2): a round has gone on from a step that nobody has trained"
    ]
    assert violations([kill(0, "Memory", "Storage")]) == [
        "kill 1 (worker, 4 pods, round 2): resumed from Storage, though a copy was left"
    ]


def test_what_is_told() -> None:
    kills = [kill(0), kill(1, "Peer"), Kill("node", 3, 5, (0, 0), ("Memory",), 2, True, 9.5)]
    kills.append(Kill(SIZE, 5, 6, (0,), ("Memory",)))
    assert told(kills, 1.25e-7).splitlines() == [
        "3 kills: 2 worker, 1 node",
        "seconds until all train again, median: worker 0.0, node 9.5",
        "pods: 1 kills of 3, 2 kills of 4",
        "steps redone: 0 in 2, 1 in 1",
        "saves skipped before a kill: 2",
        "killed while the save before the last step was copied: 1",
        "1 changes of size, steps redone: 0",
        "resumed from: Memory 3, Peer 1",
        "reads of the storage: 0",
        "largest difference of a loss: 1.2e-07",
    ]
