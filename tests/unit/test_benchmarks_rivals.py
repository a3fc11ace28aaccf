"""Schedule and judgement of the benchmark of rivals, and what is written of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals import report
from benchmarks.rivals.environments import (
    REQUIREMENTS,
    UnavailableError,
    cache_dir,
    interpreter,
    without_paths,
)
from benchmarks.rivals.judging import (
    FINISHED,
    Cost,
    Result,
    Stamp,
    Struck,
    costs,
    first_trained,
    judge,
    newest_ranks,
    pace,
    read,
    redone,
)
from benchmarks.rivals.run import PODS, _Play
from benchmarks.rivals.schedule import (
    ADDED,
    AGENT,
    HOST,
    KINDS,
    LEADER,
    REMOVED,
    WORKER,
    Fault,
    put_off,
    saved_every,
    schedule,
    victim,
)
from benchmarks.rivals.systems import Alone


def _stamp(step: int, at: float, *, rank: int = 0, pod: int = 0, pid: int = 1) -> Stamp:
    return Stamp(pod, pid, rank, step, at, 0.5)


def test_schedule_has_each_kind_once_with_equal_steps_between() -> None:
    planned = schedule(400)
    assert [fault.kind for fault in planned] == list(KINDS)
    assert planned[0] == Fault(WORKER, 50)
    assert [fault.step for fault in planned] == [50, 90, 130, 170, 210, 250]


def test_faults_come_in_the_middle_between_two_saves() -> None:
    assert saved_every(400) == 20
    assert {fault.step % saved_every(400) for fault in schedule(400)} == {10}
    assert {fault.step % saved_every(40) for fault in schedule(40)} == {1}


def test_schedule_refuses_too_few_steps() -> None:
    with pytest.raises(ValueError, match="39 steps, expected at least 40"):
        schedule(39)


def test_removal_is_put_off_by_a_save_each_time_and_leaves_steps_that_show_its_cost() -> None:
    removals = [schedule(400)[-1]]
    while later := put_off(removals[-1], 400):
        removals.append(later)
    assert [one.step for one in removals] == [250, 270, 290, 310, 330, 350, 370]


class World(Alone):
    """A session and its pods, of which it notes what happens to the one that is added."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    def start(self, pod: int) -> None:
        self.happened.append(f"pod {pod} added")

    def remove(self, pod: int) -> None:
        self.happened.append(f"pod {pod} removed")


@pytest.mark.parametrize(
    ("trains", "removed", "note"), [(260, 270, ""), (999, 370, "it had not trained yet")]
)
def test_added_pod_is_removed_once_it_has_trained_or_after_a_bound(
    trains: int, removed: int, note: str
) -> None:
    """Where it is removed before it has trained, neither its addition nor its removal costs anything."""
    world: Any = World()
    played = _Play(world, world, 400, schedule(400)[-2:])
    for step in range(200, 400):
        played.strike([_stamp(step, step), *([_stamp(step, step, pod=PODS)] if step >= trains else [])], step)
    assert world.happened == ["pod 3 added", "pod 3 removed"]
    assert [(one.kind, one.step, one.note) for one in played.struck] == [
        (ADDED, 210, ""),
        (REMOVED, removed, note),
    ]


def test_victims_differ_as_long_as_there_are_enough_pods() -> None:
    ranks = {0: 1, 1: 2, 2: 0}
    assert victim(LEADER, ranks, host=0) == 1
    assert victim(AGENT, ranks, host=0) == 2
    assert victim(WORKER, ranks, host=0) == 2
    assert victim(HOST, {}, host=0) == 0


def test_with_two_pods_the_coordinators_is_hit_before_that_of_rank_0() -> None:
    assert victim(AGENT, {0: 1, 1: 0}, host=0) == 0
    assert victim(AGENT, {0: 1}, host=0) == 1


def test_no_victim_if_nobody_trains() -> None:
    with pytest.raises(ValueError, match="no rank trains"):
        victim(AGENT, {}, host=0)


def test_unfinished_line_is_not_read() -> None:
    text = '{"rank": 0, "step": 1, "at": 2.0, "loss": 0.5}\n{"rank": 0, "st'
    assert read(3, 44, text) == [Stamp(3, 44, 0, 1, 2.0, 0.5)]


def test_step_counts_from_when_the_first_rank_has_trained_it_first() -> None:
    stamps = [_stamp(1, 5.0), _stamp(1, 4.5, rank=1), _stamp(1, 9.0, pid=2)]
    assert first_trained(stamps) == {1: 4.5}


def test_step_that_both_ranks_train_twice_is_redone_once() -> None:
    before = [_stamp(step, step, rank=rank) for step in (1, 2, 3) for rank in (0, 1)]
    after = [_stamp(step, step + 10, rank=rank, pid=2) for step in (3, 4) for rank in (0, 1)]
    assert redone(before) == 0
    assert redone(before + after) == 1


def test_redone_step_counts_even_if_a_killed_rank_had_not_stamped_it() -> None:
    stamps = [_stamp(1, 1.0, rank=1), _stamp(1, 5.0, pid=2), _stamp(1, 5.0, rank=1, pid=3)]
    assert redone(stamps) == 1


def test_newest_ranks_are_those_of_the_last_round() -> None:
    old, new = _stamp(4, 1.0, pod=0), _stamp(4, 2.0, pod=2)
    assert newest_ranks([new, old, _stamp(2, 3.0, rank=1)]) == {0: new}
    assert newest_ranks([]) == {}


def test_rank_that_has_not_stamped_the_newest_step_yet_is_there() -> None:
    slow = _stamp(3, 3.0, rank=1)
    assert newest_ranks([_stamp(3, 3.0), _stamp(4, 4.0), slow]) == {0: _stamp(4, 4.0), 1: slow}


def test_pace_is_the_median_before_the_first_fault() -> None:
    assert pace({1: 0.0, 2: 1.0, 3: 2.0, 4: 12.0}, until=5.0) == 1.0
    assert pace({1: 0.0}, until=5.0) is None


def test_fault_costs_what_its_steps_take_longer() -> None:
    trained = {1: 1.0, 2: 2.0, 3: 7.0, 4: 8.0, 5: 9.0, 6: 10.0}
    struck = [Struck(WORKER, 2.0, 2), Struck(AGENT, 8.0, 4)]
    assert costs(trained, struck, 6) == [Cost(WORKER, 5.0, 4.0), Cost(AGENT, 1.0, 0.0)]


def test_pause_that_comes_later_is_lost_as_well() -> None:
    """A pod that is added stops the others only when it is ready."""
    trained = {1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0}
    assert costs(trained, [Struck(AGENT, 2.0, 2)], 4) == [Cost(AGENT, 1.0, 5.0)]


def test_fault_after_which_nothing_was_trained_has_no_cost() -> None:
    trained = {1: 1.0, 2: 2.0}
    assert costs(trained, [Struck(HOST, 2.0, 2)], 6) == [Cost(HOST, None, None)]


def test_judge_fills_in_a_finished_training() -> None:
    result = Result("one", "1", "", FINISHED)
    judge(result, [_stamp(step, 10.0 + step) for step in range(1, 15)], [], began=10.0, steps=14)
    assert (result.minutes, result.reached, result.redone, result.loss) == (14 / 60, 14, 0, 0.5)
    assert result.curve[:2] == [1.0, 2.0]
    assert result.pace == 1.0


def test_judge_has_no_minutes_for_a_training_that_came_to_nothing() -> None:
    result = Result("one", "1", "", "no new step")
    judge(result, [_stamp(1, 11.0), _stamp(3, 12.0)], [], began=10.0, steps=14)
    assert (result.minutes, result.loss, result.curve) == (None, None, [1.0, None, 2.0])


def test_results_are_written_and_read_again(tmp_path: Path) -> None:
    done = Result(
        "one", "1", "--flag", FINISHED, 1.5, 4, 2, 3, 0.2, 0.1, [Cost(WORKER, 1.0, 2.0)], [1.0, 2.0]
    )
    unable = Result("two", "2", "", "cannot be run here: needs glibc | 2.39")
    written = {"steps": 40, report.FAULTS: "5 / 9"}
    report.write(tmp_path, written, [done, unable])
    facts, results = report.read(tmp_path)
    assert (facts, results) == (written, [done, unable])
    text = (tmp_path / "rivals.md").read_text()
    assert "| one | 1.50 | 2 | 3 | 0.1000 | finished |" in text
    assert "| two | - | - | - | - | cannot be run here: needs glibc \\| 2.39 |" in text
    assert "| one | 0.20 s | 2.0 (1.0) | - |" in text
    assert (tmp_path / "rivals.png").stat().st_size > 0


def test_loss_of_time_is_not_below_nothing_and_says_never(tmp_path: Path) -> None:
    faults = [Cost(WORKER, 0.1, -0.01), Cost(AGENT, None, None, "in vain")]
    report.write(tmp_path, {}, [Result("one", "1", "", "x", reached=2, pace=0.2, faults=faults)])
    assert "| one | 0.20 s | 0.0 (0.1) | - (never): in vain |" in (tmp_path / "rivals.md").read_text()


def test_missing_python_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"needs Python 3\.99"):
        interpreter("3.99")


def test_errors_in_a_table_have_no_folders_of_the_machine() -> None:
    assert (
        without_paths(f"error: {cache_dir()}/one/bin: none in {Path.home()}")
        == "error: CACHE/one/bin: none in ~"
    )


def test_each_requirement_is_pinned() -> None:
    for file in REQUIREMENTS.glob("*.txt"):
        for line in file.read_text().splitlines():
            assert "==" in line, f"{file.name}: {line}"
