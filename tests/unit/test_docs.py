"""What docs/failures.md and docs/security.md call shown is there to be run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def rows(page: str, first: str) -> list[str]:
    """The rows of a page's tables, whose first column is headed ``first``."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith(f"| {first} |")]


ROWS = rows("failures.md", "what happens")
THREATS = rows("security.md", "threat")
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
HOSTILE = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "hostile-input.md").read_text())
SCENARIOS = {path.stem for path in (ROOT / "tests" / "scenarios" / "races").glob("*.txt")}


def by_first_column(row: str) -> str:
    """A test's name."""
    return row.split("|")[1].strip()[:60]


def shown(row: str, columns: int) -> list[str]:
    """What a row names as its proof; all of it is there."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == columns
    assert all(cells)
    if cells[-1] == "the same":
        return []
    names = re.findall(r"`([^`]+)`", cells[-1])
    assert names
    for name in names:
        there = (ROOT / name).exists() if "/" in name else name in TESTS | SCENARIOS
        assert there, f"{name} is no test, and no scenario"
    return names


@pytest.mark.parametrize("row", ROWS, ids=by_first_column)
def test_every_row_is_shown_by_something_that_there_is(row: str) -> None:
    shown(row, 6)


@pytest.mark.parametrize("row", THREATS, ids=by_first_column)
def test_every_threat_has_a_test(row: str) -> None:
    assert shown(row, 4)


def test_what_hostile_input_is_said_to_be_shown_by_is_there() -> None:
    assert len(HOSTILE) > 20
    assert not set(HOSTILE) - TESTS
