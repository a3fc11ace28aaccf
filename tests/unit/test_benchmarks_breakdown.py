"""The breakdown's arithmetic: phases out of time stamps, its table, its picture, and the JSON in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.breakdown import (
    BARE,
    IMPORT,
    NOTICE,
    OURS,
    PHASES,
    RANKS,
    RENDEZVOUS,
    REPLACED,
    REPLACEMENT,
    REPORT,
    RETURN,
    STANDBY,
    START,
    STEP,
    STOP,
    TOLD,
    WARM,
    Agent,
    Bar,
    Breakdown,
    Memory,
    Run,
    Worker,
    pause,
)
from benchmarks.breakdown_runs import read_agents
from benchmarks.breakdown_table import table
from benchmarks.pictures import plot_breakdown
from benchmarks.results import JOB_DIED

KILLED = 100.0


def agent(*stamps: tuple[str, float], worker: float = 0.0) -> Agent:
    """A torchrun whose worker of the next round started at ``worker``, if that is given."""
    before = Worker(11.0, 12.0, ((13.0, 2), (99.0, 2)))
    after = Worker(worker, worker + 2.0, ((worker + 2.5, 2),))
    return Agent(stamps, (before, after) if worker else (before,))


def survivor(told: float = 100.2, called: float = 100.3, returned: float = 100.9) -> Agent:
    return agent(
        ("process", 9.0),
        ("python", 9.1),
        ("called", 10.0),
        ("returned", 10.5),
        ("ranked", 10.6),
        ("told", told),
        ("called", called),
        ("returned", returned),
        ("ranked", returned + 0.05),
        worker=returned + 0.1,
    )


def standby() -> Agent:
    stamps = [("process", 50.0), ("python", 50.1), ("called", 60.0), ("returned", 100.85), ("ranked", 100.9)]
    return Agent(stamps, (Worker(101.1, 103.2, ((103.6, 2),)),))


def victim() -> Agent:
    return agent(("process", 9.0), ("python", 9.1), ("called", 10.0), ("returned", 10.5), ("ranked", 10.6))


def run(*agents: Agent, **marks: float) -> Run:
    return Run(KILLED, 2, agents, marks)


class TestPhases:
    def test_each_ends_when_the_last_one_has_passed(self) -> None:
        found = run(survivor(), victim(), standby(), reported=100.03, broken=100.1).phases()
        expected = {
            REPORT: 0.03,
            NOTICE: 0.07,
            TOLD: 0.1,
            STOP: 0.1,
            REPLACEMENT: 0.0,
            RENDEZVOUS: 0.6,
            RANKS: 0.05,
            START: 0.15,
            IMPORT: 2.1,
            STEP: 0.4,
        }
        assert found == {phase: pytest.approx(seconds) for phase, seconds in expected.items()}

    def test_they_add_up_to_the_time_from_the_kill_to_the_last_first_step(self) -> None:
        found = run(survivor(), victim(), standby(), broken=100.1).phases()
        assert list(found) == list(PHASES)
        assert sum(found.values()) == pytest.approx(103.6 - KILLED)

    def test_agents_that_act_before_the_record_says_so_leave_nothing_to_notice(self) -> None:
        found = run(survivor(told=100.05), standby(), reported=100.2, broken=100.3).phases()
        assert [found[REPORT], found[NOTICE], found[TOLD]] == pytest.approx([0.05, 0.0, 0.0])

    def test_without_a_pod_that_has_ended_noticing_begins_with_the_kill(self) -> None:
        found = run(survivor(), standby(), broken=100.1).phases()
        assert [found[REPORT], found[NOTICE], found[TOLD]] == pytest.approx([0.0, 0.1, 0.1])

    def test_without_a_record_to_watch_noticing_is_acting(self) -> None:
        found = run(survivor(), standby()).phases()
        assert [found[REPORT], found[NOTICE], found[TOLD]] == pytest.approx([0.0, 0.0, 0.2])

    def test_who_was_started_after_the_kill_is_waited_for(self) -> None:
        late = agent(
            ("process", 99.99),
            ("python", 100.15),
            ("called", 100.7),
            ("returned", 100.9),
            ("ranked", 101.0),
            worker=101.1,
        )
        found = run(survivor(), victim(), late, broken=100.1).phases()
        assert found[STOP] == pytest.approx(0.1), "the newcomer's call does not count as a survivor's"
        assert found[REPLACEMENT] == pytest.approx(0.4)
        assert found[RENDEZVOUS] == pytest.approx(0.2)

    def test_a_bare_start_has_nothing_but_its_own_way(self) -> None:
        bare = Agent(
            [
                ("process", 99.99),
                ("python", 100.02),
                ("called", 101.0),
                ("returned", 101.1),
                ("ranked", 101.2),
            ],
            (Worker(101.3, 102.0, ((102.1, 2),)), Worker(101.4, 102.2, ((102.3, 2),))),
        )
        found = run(bare).phases()
        assert found[REPLACEMENT] == pytest.approx(1.0)
        assert (found[TOLD], found[STOP]) == (0.0, 0.0)
        assert sum(found.values()) == pytest.approx(2.3)

    def test_a_round_that_came_to_nothing_in_between_is_part_of_the_rendezvous(self) -> None:
        twice = agent(
            ("python", 9.1),
            ("told", 100.1),
            ("called", 100.2),
            ("returned", 100.3),
            ("ranked", 100.4),
            ("told", 100.5),
            ("called", 100.6),
            ("returned", 101.2),
            ("ranked", 101.3),
            worker=101.4,
        )
        found = run(twice, standby()).phases()
        assert [found[STOP], found[RENDEZVOUS]] == pytest.approx([0.1, 1.0])

    def test_a_run_without_a_first_step_has_none(self) -> None:
        unfinished = run(survivor(), victim())
        assert not unfinished.trains()
        with pytest.raises(ValueError, match="1 of 2 workers"):
            unfinished.phases()

    def test_steps_of_the_round_before_are_no_first_step(self) -> None:
        assert not run(victim(), victim()).trains()


class TestPath:
    def test_goes_from_the_broken_round_to_the_newcomers_return(self) -> None:
        late = Agent(
            [("process", 100.3), ("python", 100.4), ("imported", 101.4), ("asked", 101.5), ("made", 101.6)]
        )
        path = run(survivor(), late, broken=100.1, pod=100.2).path()
        assert path == {
            "round broken, to the pod made": pytest.approx(0.1),
            "pod made, to torchrun's process": pytest.approx(0.1),
            "start of Python": pytest.approx(0.1),
            "torchrun's import of torch": pytest.approx(1.0),
            "torchrun's own start": pytest.approx(0.1),
            "the handler: import and creation": pytest.approx(0.1),
        }

    def test_a_standby_has_none(self) -> None:
        assert run(survivor(), standby(), broken=100.1).path() == {}


class TestPause:
    STAYS = Worker(10.0, 11.0, ((99.0, 2),)), Worker(100.1, 100.1, ((100.4, 1), (120.0, 1), (120.2, 1)))

    def test_is_from_the_last_step_of_the_smaller_world_to_the_first_of_all(self) -> None:
        grown = Worker(120.3, 120.3, ((120.6, 2), (120.7, 2)))
        came = Worker(120.3, 120.3, ((120.8, 2),))
        agents = [Agent((), (*self.STAYS, grown)), Agent((), (came,))]
        assert pause(agents, 1, 2, 110.0) == pytest.approx(0.6)

    def test_is_not_known_before_all_train(self) -> None:
        grown = Worker(120.3, 120.3, ((120.6, 2),))
        assert pause([Agent((), (*self.STAYS, grown))], 1, 2, 110.0) is None


@pytest.fixture
def breakdown() -> Breakdown:
    found = Breakdown({"cpus": 2})
    for at in (100.1, 100.12, 100.14):
        found.bar("k8s", STANDBY, 2).add(run(survivor(), standby(), reported=100.03, broken=at))
    found.bar("c10d", STANDBY, 2).add(run(survivor(returned=115.0), standby_at(115.0)))
    found.bar("c10d", REPLACED, 2).outcomes.append(JOB_DIED)
    bare = Agent([("python", 100.0), ("called", 101.0), ("returned", 101.1)], [survivor().workers[1]] * 2)
    found.bar("", BARE, 2).add(run(bare))
    for shrunk, grown in ((0.3, 0.25), (0.4, 0.2)):
        found.pauses_of("k8s", RETURN + WARM, 2).add(shrunk, grown, 11.0)
    found.pauses_of("c10d", RETURN, 2).outcomes.append(JOB_DIED)
    found.memory += [Memory(2, False, 960.4, 290.0), Memory(2, True, 1700.0, 1040.0)]
    return found


def standby_at(returned: float) -> Agent:
    worker = Worker(returned + 0.1, returned + 2.1, ((returned + 2.6, 2),))
    return Agent(
        [("python", 50.1), ("called", 60.0), ("returned", returned), ("ranked", returned)], (worker,)
    )


class TestBar:
    def test_medians_are_of_each_phase(self, breakdown: Breakdown) -> None:
        bar = breakdown.bar("k8s", STANDBY, 2)
        assert bar.medians()[NOTICE] == pytest.approx(0.09)
        assert bar.total().median == pytest.approx(3.6)
        assert bar.ours().median == pytest.approx(sum(bar.phases[1][phase] for phase in OURS))

    def test_one_that_never_ended_well_says_how_it_ended(self, breakdown: Breakdown) -> None:
        bar = breakdown.bar("c10d", REPLACED, 2)
        assert (bar.medians(), bar.total().ended) == ({}, JOB_DIED)


class TestTable:
    def test_has_a_row_for_each_phase_and_the_ratios(self, breakdown: Breakdown) -> None:
        text = table(breakdown)
        assert "| phase | k8s, standby | c10d, standby | c10d, replacement | bare start |" in text
        assert "| round broken | 0.090 |  |  |  |" in text
        whole = "3.60 (3.60 to 3.60) | 17.6 (17.6 to 17.6) | job died (1 of 1) | 3.50 (3.50 to 3.50)"
        assert f"| **total** | {whole} |" in text
        assert "| total by bare start | 1.03 | 5.03 |  | 1.00 |" in text
        assert "| k8s by c10d |  | 0.20 |  |  |" in text

    def test_has_the_memory_of_a_pod_that_trains_and_of_one_that_stands_by(
        self, breakdown: Breakdown
    ) -> None:
        text = table(breakdown)
        assert "| workers | trains | trains, warm | stands by | stands by, warm |" in text
        assert "| 2 | 960 | 1700 | 290 | 1040 |" in text

    def test_leads_to_its_picture_and_to_the_trace(self, breakdown: Breakdown) -> None:
        assert "(breakdown.png)" in table(breakdown)
        assert "(trace.md)" in table(breakdown)

    def test_has_both_interruptions_where_a_torchrun_is_lost_and_another_comes(
        self, breakdown: Breakdown
    ) -> None:
        text = table(breakdown)
        assert "| | goes on | grows again | until it trains |" in text.replace("|  |", "| |")
        row = "0.35 (0.30 to 0.40) | 0.23 (0.20 to 0.25) | 11.0 (11.0 to 11.0)"
        assert f"| k8s, shrink and return, warm, N = 2 | {row} |" in text
        assert "| c10d, shrink and return, N = 2 | job died (1 of 1) |" in text


def test_json_keeps_the_figures(breakdown: Breakdown, tmp_path: Path) -> None:
    breakdown.write(tmp_path / "breakdown.json")
    first = json.loads((tmp_path / "breakdown.json").read_text())["bars"][0]
    assert (first["backend"], first["variant"], first["n"], first["outcomes"]) == (
        "k8s",
        STANDBY,
        2,
        ["ok"] * 3,
    )
    assert first["phases"][0][IMPORT] == 2.1
    again = Breakdown.read(tmp_path / "breakdown.json")
    assert [(bar.name, bar.n, bar.outcomes) for bar in again.bars] == [
        (bar.name, bar.n, bar.outcomes) for bar in breakdown.bars
    ]
    assert again.bars[0].medians() == pytest.approx(breakdown.bars[0].medians(), abs=1e-4)
    assert again.pauses == breakdown.pauses
    assert again.memory == [Memory(2, False, 960, 290), Memory(2, True, 1700, 1040)]


def test_plot_is_a_png(breakdown: Breakdown, tmp_path: Path) -> None:
    breakdown.bars.append(Bar("c10d", "as it ships", 4, outcomes=[JOB_DIED]))
    plot_breakdown(breakdown, tmp_path / "breakdown.png")
    assert (tmp_path / "breakdown.png").read_bytes().startswith(b"\x89PNG")


def test_stamps_are_read_from_files_even_while_a_line_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "1.agent").write_text("process 20.0\npython 20.1\ncalled 21.")
    (tmp_path / "0.agent").write_text("process 10.0\npython 10.1\n")
    (tmp_path / "0.77").write_text("started 12.0\nimported 13.0\ninitialised 13.5\n14.0 2\n14.1 2\n14.")
    first, second = read_agents(tmp_path)
    assert first.workers == [Worker(12.0, 13.0, [(14.0, 2), (14.1, 2)])]
    assert (second.stamps, second.workers) == ([("process", 20.0), ("python", 20.1)], [])
