"""What the benchmarks make of raw figures: plan, summaries, table, plot, and the JSON in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import peer_limits, peers, pictures, processor_time
from benchmarks.drain import Change
from benchmarks.drain import table as drain_table
from benchmarks.plan import BACKENDS, SIZES, WHATS, in_turns, plan
from benchmarks.processor_time import ProcessorTime, processor_seconds
from benchmarks.results import (
    APISERVER,
    HANDLER,
    JOB_DIED,
    OPERATOR,
    STORE_SHARING_OFF,
    TIMEOUT,
    Outcome,
    Samples,
)
from benchmarks.table import ratio, table
from benchmarks.warm_cost import Pair
from benchmarks.warm_cost import table as cost_table


def measured(what: str, backend: str, variant: str, n: int, *figures: float | str) -> Samples:
    """Results of one series: seconds, or the word for how a run ended."""
    results = Samples({"cpus": 2})
    add(results, what, backend, variant, n, *figures)
    return results


def add(results: Samples, what: str, backend: str, variant: str, n: int, *figures: float | str) -> None:
    for figure in figures:
        outcome = Outcome(None, figure) if isinstance(figure, str) else Outcome(figure)
        results.add(outcome.sample(what, backend, n, variant))


@pytest.fixture
def comparison() -> Samples:
    results = measured("replace", "k8s", "", 8, 0.2, 0.1, 0.4)
    add(results, "replace", "c10d", "", 8, JOB_DIED)
    add(results, "replace", "c10d", STORE_SHARING_OFF, 8, 14.0, TIMEOUT, 16.0)
    add(results, "join", "k8s", "", 128, 0.5)
    add(results, "join", "c10d", "", 128, TIMEOUT, TIMEOUT)
    results.add(Outcome(0.02, requests=1.5).sample("rejoin", "k8s", 2))
    return results


class TestSummary:
    def test_median_and_spread_leave_failures_out(self, comparison: Samples) -> None:
        summary = comparison.summary("replace", 8, "c10d", STORE_SHARING_OFF)
        assert summary is not None
        assert (summary.median, summary.low, summary.high) == (15.0, 14.0, 16.0)
        assert (summary.runs, summary.failures, summary.ended) == (3, {TIMEOUT: 1}, "")

    def test_a_series_in_which_nothing_ended_well_says_how_it_ended(self, comparison: Samples) -> None:
        summary = comparison.summary("join", 128, "c10d")
        assert summary is not None
        assert (summary.median, summary.ended) == (None, TIMEOUT)

    def test_what_was_not_measured_has_no_summary(self, comparison: Samples) -> None:
        assert comparison.summary("shrink", 8, "k8s") is None


class TestRatio:
    def test_is_by_the_best_variant(self) -> None:
        results = measured("join", "k8s", "", 8, 0.5)
        add(results, "join", "c10d", "", 8, 2.0)
        add(results, "join", "c10d", STORE_SHARING_OFF, 8, 1.0)
        assert ratio(results, "join", 8) == 0.5

    def test_is_none_where_one_side_never_ended_well(self, comparison: Samples) -> None:
        assert ratio(comparison, "join", 128) is None


class TestTable:
    def test_a_row_has_median_spread_failures_and_ratio(self, comparison: Samples) -> None:
        row = (
            "| 8 | 0.20 (0.10 to 0.40) | job died (1 of 1) | 15.0 (14.0 to 16.0); timeout (1 of 3) | 0.013 |"
        )
        assert row in table(comparison)

    def test_requests_have_a_column_where_they_were_counted(self, comparison: Samples) -> None:
        assert "| 2 | 0.020 (0.020 to 0.020) |  | 1.50 |" in table(comparison)


class TestProcessorTime:
    def test_each_process_has_a_column_where_it_was_read(self, comparison: Samples) -> None:
        assert "processor: agent" not in table(comparison)
        used = {HANDLER: 4.0, OPERATOR: 2.5, APISERVER: 8.0}
        comparison.add(Outcome(0.02, requests=1.5, processor=used).sample("rejoin", "k8s", 2))
        comparison.add(Outcome(1.0, processor={HANDLER: 30.0}).sample("rejoin", "c10d", 2))
        assert "| 1.50 | 4.00 | 2.50 | 8.00 | 30.0 |\n" in table(comparison)

    def test_that_of_other_processes_is_what_they_say_themselves(self) -> None:
        code = "import sys, time\nwhile time.process_time() < 0.05: pass\nprint(flush=True); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdout.readline()
            assert 0.05 <= processor_seconds(other.pid) < 60.0
            other.stdin.close()

    def test_is_what_was_used_beyond_that_of_doing_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = {"now": 0.0, "used": 0.0}
        monkeypatch.setattr(processor_time, "processor_seconds", lambda _pid: clock["used"])
        time = SimpleNamespace(
            monotonic=lambda: clock["now"],
            sleep=lambda seconds: clock.update(now=seconds, used=0.1 * seconds),
        )
        monkeypatch.setattr(processor_time, "time", time)
        used = ProcessorTime({"operator": [1, 2]}, idle_seconds=2.0)
        clock.update(now=5.0, used=0.2 + 0.3 + 0.4)
        assert used.milliseconds(shared_by=4)["operator"] == pytest.approx(2 * 400 / 4)


def test_json_keeps_the_figures_and_the_environment(comparison: Samples, tmp_path: Path) -> None:
    comparison.write(tmp_path / "results.json")
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["environment"] == {"cpus": 2}
    written = [one for one in content["samples"] if one.get("variant") == STORE_SHARING_OFF]
    assert {(one["what"], one["backend"], one["n"]) for one in written} == {("replace", "c10d", 8)}
    assert [one["seconds"] for one in written] == [14.0, None, 16.0]
    assert [one["outcome"] for one in written] == ["ok", "timeout", "ok"]
    assert table(Samples.read(tmp_path / "results.json")) == table(comparison)


def test_the_pictures_of_the_results_are_drawn_again_from_their_figures(tmp_path: Path) -> None:
    pictures.draw(tmp_path)
    drawn = sorted(file.name for file in tmp_path.iterdir())
    assert drawn == sorted(file.name for file in pictures.RESULTS.glob("*.png"))


def test_a_picture_names_what_people_know_and_has_no_empty_panel(
    comparison: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("benchmarks.drawing.pyplot.close", drawn.append)
    pictures.plot(comparison, tmp_path / "plot.png")
    (figure,) = drawn
    assert all(axes.has_data() and axes.get_visible() for axes in figure.axes)
    named = {
        text.get_text() for axes in figure.axes if axes.get_legend() for text in axes.get_legend().get_texts()
    }
    assert "ElasticJob" in named
    assert [name for name in named if "k8s" in name] == []


def test_plot_is_a_png_even_where_a_backend_never_ended_well(comparison: Samples, tmp_path: Path) -> None:
    pictures.plot(comparison, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


class TestPlan:
    def test_a_plain_run_stops_c10d_at_32_where_it_is_slow(self) -> None:
        tasks = plan(WHATS, None, None, BACKENDS)
        for what in ("replace", "shrink"):
            sizes = {
                backend: {t.n for t in tasks if t.whats == (what,) and t.backend == backend}
                for backend in BACKENDS
            }
            assert sizes == {"k8s": set(SIZES), "c10d": {2, 8, 32}}

    def test_what_was_asked_for_is_taken_at_its_word(self) -> None:
        (task,) = plan(["shrink"], [64], 7, ["k8s"])
        assert (task.whats, task.backend, task.n, task.runs) == (("shrink",), "k8s", 64, 7)

    def test_join_and_rejoin_share_their_sessions(self) -> None:
        assert {task.whats for task in plan(["rejoin", "join"], [2], 1, BACKENDS)} == {("join", "rejoin")}

    def test_backends_take_turns_run_by_run(self) -> None:
        turns = in_turns(plan(["join"], [2, 8], 2, BACKENDS))
        order = [(task.n, task.backend) for task in turns if task.variant == ""]
        assert order == [(n, backend) for n in (2, 8) for _ in range(2) for backend in BACKENDS]


def test_the_cost_of_warm_workers_is_the_ratio_of_runs_that_took_turns() -> None:
    pairs = [Pair(1, 60.0, 10.0, 10.1, ready=True), Pair(1, 60.0, 20.0, 20.4, ready=True)]
    pairs += [Pair(2, 60.0, 10.0, 11.0, ready=False)]
    text = cost_table(pairs, {"cpus": 2})
    assert "| 1 | 15.00 | 15.25 | 1.015 (1.010 to 1.020) | 2 of 2 |" in text
    assert "| 2 | 10.00 | 11.00 | 1.100 (1.100 to 1.100) | 0 of 1 |" in text


def test_planned_changes_are_told_kind_by_kind() -> None:
    changes = [
        Change("deleted", 0.05, 0.3, 6.0, 0, "Stopped"),
        Change("suspended", 0.1, 0.2, None, 0, "Stopped"),
        Change("deleted", 0.07, 0.5, 5.0, 2, "DeadlineExceeded"),
    ]
    text = drain_table(changes, {"cpus": 2})
    assert (
        "| deleted | 0.060 (0.050 to 0.070) | 0.40 (0.30 to 0.50) | 5.50 (5.00 to 6.00) | 2 | 1 of 2 |"
        in text
    )
    assert "| suspended | 0.10 (0.10 to 0.10) | 0.20 (0.20 to 0.20) | - | 0 | 1 of 1 |" in text


def test_the_table_of_runs_without_operator_has_all_backends_beside_each_other() -> None:
    results = measured("join", "peers", peer_limits.LEASES_ALONE, 2, 0.1, 0.2, 0.3)
    add(results, "join", "k8s", "", 2, 0.05)
    add(results, "coordinator", "peers", peer_limits.LEASES_ALONE, 2, TIMEOUT)
    results.add(Outcome(60.0, requests=4.0).sample("steady", "peers", 2, peer_limits.LEASES_ALONE))
    lines = peers.table(results).splitlines()
    assert "|  | N | peers, Leases alone | k8s |" in lines
    assert "| first join, s | 2 | 0.20 (0.10 to 0.30) | 0.050 (0.050 to 0.050) |" in lines
    assert "| kill -9 of the coordinator, s | 2 | timeout (1 of 1) | - |" in lines
    assert "| requests a minute for each participant, while nothing happens | 2 | 4.00 | - |" in lines
    assert "## Limits" in lines


def limits(results: Samples) -> list[tuple[str, int, str, str, bool | None]]:
    return [(v.variant, v.n, v.measured, v.limit, v.met) for v in peer_limits.verdicts(results)]


def test_the_limits_of_runs_without_operator_are_judged_by_medians() -> None:
    alone, pods = peer_limits.LEASES_ALONE, peer_limits.WITH_PODS
    results = measured("shrink", "peers", pods, 8, 0.29, 0.3, 9.0)
    add(results, "shrink", "peers", alone, 8, 3.6, 3.51, 3.4)
    add(results, "shrink", "peers", pods, 2, 99.0)
    add(results, "coordinator", "peers", pods, 8, 0.1)
    add(results, "coordinator", "peers", alone, 8, 3.72)
    for n, operator, alone_takes, pods_take in ((2, 0.03, 0.041, 0.03), (8, 0.1, 0.13, 0.05)):
        add(results, "rejoin", "k8s", "", n, operator)
        add(results, "rejoin", "peers", alone, n, alone_takes)
        add(results, "rejoin", "peers", pods, n, pods_take)
    assert limits(results) == [
        (pods, 8, "0.30", "0.30", True),
        (alone, 8, "3.51", "3.50", False),
        (pods, 8, "0.10", "0.30", True),
        (alone, 8, "3.72", "3.50", False),
        (alone, 2, "0.041", "0.039", False),
        (pods, 2, "0.030", "0.039", True),
        (alone, 8, "0.13", "0.13", True),
        (pods, 8, "0.050", "0.13", True),
    ]
    text = peers.table(results)
    for who, median in (("a member", "3.51"), ("the coordinator", "3.72")):
        row = f"kill -9 of {who}, one of 8, to the next round, s | 8 | Leases alone | {median} | 3.50"
        assert f"| {row} | **not met** |" in text
    assert "| re-join, s | 8 | with the right on pods | 0.050 | 0.13 | met |" in text


def test_a_limit_is_not_met_by_runs_that_failed_and_not_judged_without_figures() -> None:
    alone, pods = peer_limits.LEASES_ALONE, peer_limits.WITH_PODS
    results = measured("shrink", "peers", pods, 8, 0.2, TIMEOUT)
    add(results, "shrink", "peers", alone, 8, TIMEOUT)
    add(results, "rejoin", "peers", alone, 8, 0.1)
    assert limits(results) == [
        (pods, 8, "0.20; 1 of 2 failed", "0.30", False),
        (alone, 8, "timeout", "3.50", False),
        (pods, 8, "-", "0.30", None),
        (alone, 8, "-", "3.50", None),
        (alone, 8, "0.10", "-", None),
        (pods, 8, "-", "-", None),
    ]
    assert limits(Samples({})) == [
        *[(pods, 8, "-", "0.30", None), (alone, 8, "-", "3.50", None)] * 2,
        (alone, 8, "-", "-", None),
        (pods, 8, "-", "-", None),
    ]
