"""What docs/failures.md calls shown is there to be run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = [
    line
    for line in (ROOT / "docs" / "failures.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| what happens")
]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
HOSTILE = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "hostile-input.md").read_text())
SCENARIOS = {path.stem for path in (ROOT / "tests" / "scenarios" / "races").glob("*.txt")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_row_is_shown_by_something_that_there_is(row: str) -> None:
    columns = [column.strip() for column in row.strip("|").split("|")]
    assert len(columns) == 6
    assert all(columns)
    names = re.findall(r"`([^`]+)`", columns[5])
    assert names or columns[5] == "the same"
    for name in names:
        there = (ROOT / name).exists() if "/" in name else name in TESTS | SCENARIOS
        assert there, f"{name} is no test, and no scenario"


def test_what_hostile_input_is_said_to_be_shown_by_is_there() -> None:
    assert len(HOSTILE) > 20
    assert not set(HOSTILE) - TESTS
