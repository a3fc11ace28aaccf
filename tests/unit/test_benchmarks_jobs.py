"""What the benchmark of many jobs makes of its figures, and of its operators' clocks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.jobs_operator import Clocks, PassTimes
from benchmarks.jobs_operators import writes_to_what_is_gone
from benchmarks.jobs_phases import own_parts, quantiles
from benchmarks.jobs_table import document, missed

REACHED: dict[str, dict[str, Any]] = {
    "start": {"requests per job beside its pods": 12.0, "operator's requests": {"create pods": 80}},
    "loss": {"loss to its record, ms, p50 and p99": [41.0, 99.5]},
}


def test_what_reaches_every_aim_is_not_listed() -> None:
    assert missed({10: REACHED}) == []


@pytest.mark.parametrize(
    ("phase", "figure", "value", "says"),
    [
        ("start", "requests per job beside its pods", 12.1, "12.1, aim 12"),
        ("loss", "loss to its record, ms, p50 and p99", [5.0, 100.1], "5.0 / 100.1, aim 100"),
        ("deletion", "more than before, %", 21, "21, aim 20"),
        ("takeover", "longest collection, ms", 51.0, "51.0, aim 50"),
    ],
)
def test_what_misses_an_aim_is_named_with_it(phase: str, figure: str, value: object, says: str) -> None:
    assert missed({10: REACHED, 300: {phase: {figure: value}}}) == [f"300 jobs, {phase}: {figure}: {says}"]


def test_each_number_of_jobs_has_a_column() -> None:
    text = document({10: REACHED, 100: {"start": REACHED["start"]}}, {"cpus": 2})
    assert "|  | aim, at most | 10 jobs | 100 jobs |" in text
    assert "| requests per job beside its pods | 12 | 12.0 | 12.0 |" in text
    assert "create pods: 80" in text
    assert "| loss to its record, ms, p50 and p99 | 100 | 41.0 / 99.5 |" in text


def test_the_operator_s_own_part_of_a_loss(tmp_path: Path) -> None:
    """News waited 3 ms for its pass, which took 30 ms, 20 of them for answers; other passes do not count."""
    loss = PassTimes(at=10.0, queued=0.003, took=0.030, waited=0.020, broke=1.0)
    clocks = Clocks()
    for one in (loss, PassTimes(at=11.0, took=5.0), PassTimes(at=1.0, took=5.0, broke=1.0)):
        clocks.passes.append(one)
    clocks.dump(tmp_path / "clocks.json")
    assert own_parts(Clocks.read(tmp_path / "clocks.json"), since=9.0) == [13.0, 13.0]


def test_writes_to_what_is_gone() -> None:
    """Reads are none, and what was there was not gone."""
    requests = Counter({"patch elasticjobs/status 404": 2, "delete pods 404": 1, "get leases 404": 5})
    assert writes_to_what_is_gone(requests + Counter({"patch leases": 9, "create pods 409": 1})) == 3


def test_quantiles_of_nothing() -> None:
    assert quantiles([]) == []
    assert quantiles([3.0, 1.0, 2.0]) == [2.0, 3.0]
