"""What the benchmark of memory checkpoints makes of stamps, and its slow store."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import ClassVar

import pytest

from benchmarks import memory_cost, memory_kills, quiet, slow_store
from benchmarks.memory_cost import MEMORY, WITHOUT, Cost, Held, cost_of
from benchmarks.memory_kills import WORKER, Kill, has_new_step, kill_of
from benchmarks.memory_runs import Worker
from benchmarks.memory_table import Figures, table
from elasticjob.checkpoint.storage import open_storage


def worker(resumed: int, trained: dict[int, float]) -> Worker:
    return Worker(resumed, trained)


def test_stamps_are_read_even_while_a_line_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "0.77"
    path.write_text("resumed 4 1.0\ntrained 5 1.5\nsaved 5 0.2\nskipped 0 1.7\ntrained 6 2.")
    assert Worker.read(path) == Worker(4, {5: 1.5}, {5: 0.2}, [0])


class TestKill:
    BEFORE: ClassVar = {"0.1": worker(0, {9: 0.9, 10: 1.0}), "1.1": worker(0, {9: 0.9, 10: 1.0})}

    def test_a_step_that_is_trained_again_is_not_new(self) -> None:
        later = {"0.2": worker(8, {9: 3.0, 10: 3.1}), "1.2": worker(8, {9: 3.0, 10: 3.1})}
        assert not has_new_step({**self.BEFORE, **later}, set(self.BEFORE))

    def test_it_counts_to_the_last_worker_s_new_step(self) -> None:
        later = {"0.2": worker(8, {9: 3.0, 10: 3.1, 11: 3.2}), "1.2": worker(8, {9: 3.0, 10: 3.1, 11: 3.3})}
        everything = {**self.BEFORE, **later}
        assert has_new_step(everything, set(self.BEFORE))
        found = kill_of(everything, set(self.BEFORE), 2.0, (WORKER, MEMORY, 100))
        assert found.new == pytest.approx(1.3)
        assert found == Kill(WORKER, MEMORY, 100, 1.0, found.new, 2)

    def test_one_worker_s_new_step_is_not_enough(self) -> None:
        later = {"0.2": worker(8, {11: 3.2}), "1.2": worker(8, {10: 3.1})}
        assert not has_new_step({**self.BEFORE, **later}, set(self.BEFORE))


class TestCost:
    def test_skipped_saves_are_no_stops_and_the_first_steps_are_left_out(self) -> None:
        first = memory_cost.SETTLED_STEPS + 1
        steps = range(1, first + 4)
        trained = {step: 0.5 * step if step < first else 0.6 * step for step in steps}
        stopped = {step: 9.0 if step < first else 0.01 for step in steps} | {first + 1: 0.001}
        skipped = [int(step > first) for step in steps]
        workers = [Worker(0, trained, stopped, skipped), Worker(0, trained, stopped, skipped)]
        found = cost_of(workers, 0, MEMORY, 100, 3, computes=False)
        assert found.step == pytest.approx(600.0)
        assert found.stop == 0.01
        assert (found.first_stop, found.saves, found.skipped) == (9.0, 3, 1)

    def test_the_ratio_is_that_of_runs_that_took_turns(self) -> None:
        figures = Figures({"cpus": 2})
        for pair, without in enumerate((500.0, 1000.0, 500.0)):
            figures.add(Cost(pair, WITHOUT, 100, computes=False, step=without))
            figures.add(Cost(pair, MEMORY, 100, False, 1.01 * without, 0.1, 0.02, 60, 1))
        row = "| 100 MB | waits | memory | 505.0 (505.0 to 1010.0) | 1.010 (1.010 to 1.010) | 0.100 "
        assert row in table(figures)
        assert "| 3 of 180 |" in table(figures)


def test_a_table_has_the_parts_that_were_measured() -> None:
    figures = Figures({"cpus": 2})
    figures.add(Held(2, 100, 200.0, 200.0))
    assert "| 2 | 100 MB | 200.0 | 200.0 | 1.00 |" in table(figures)
    assert "next new step" not in table(figures)
    for redone in (0, 2, 1):
        figures.add(Kill(WORKER, memory_kills.STORE, 100, 0.4, 1.5 + redone, redone))
    assert (
        "| worker | store of 200 MB/s | 100 MB | 0.400 (0.400 to 0.400) | 2.500 (1.500 to 3.500) "
        in table(figures)
    )
    assert "| 1 (0 to 2) | 3 |" in table(figures)


def test_the_slow_store_keeps_checkpoints_and_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(slow_store, "_pause", lambda size, _began: sizes.append(size))
    slow_store.register()
    storage, path = open_storage(f"{slow_store.SCHEME}://{tmp_path}/checkpoints")
    storage.make_folder(path)
    with storage.stream(storage.join(path, "a"), "wb") as file:
        file.write(bytes(40_000_000))
    storage.rename(storage.join(path, "a"), storage.join(path, "b"))
    assert storage.sizes(path) == {"b": 40_000_000}
    assert (tmp_path / "checkpoints" / "b").stat().st_size == 40_000_000
    assert sum(sizes) == 40_000_000
    sizes.clear()
    assert storage.read(storage.join(path, "b")) == bytes(40_000_000)
    assert sum(sizes) == 40_000_000
    assert slow_store.pause_seconds(40_000_000, 0.05) == pytest.approx(0.15)
    assert slow_store.pause_seconds(40_000_000, 0.5) == 0.0


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    quiet.add_argument(parser)
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    with pytest.raises(SystemExit, match=r"the load average of the last minute is 99\.00, expected"):
        quiet.refuse_if_busy(parser.parse_args([]))
    quiet.refuse_if_busy(parser.parse_args(["--busy"]))
