"""What documents call shown is there to be run. What the operator may say is explained: causes, Events, and
the reasons of Failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticjob.contract.round_record import Outcome
from elasticjob_operator.plan.state.evidence import ACCOUNTS, CAUSES, NEVER_CHARGED, SCALING

ROOT = Path(__file__).resolve().parent.parent.parent
WHAT_HAPPENS, SECURITY = "reference/what-happens.md", "operate/security.md"
STATUS, EVIDENCE = "reference/status.md", "internals/evidence.md"


def rows(page: str, first: str) -> list[str]:
    """The rows of a page's tables, whose first column is headed ``first``."""
    found, ours = [], False
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if not line.startswith("|"):
            ours = False
        elif line.startswith(f"| {first} |"):
            ours = True
        elif ours and line.startswith("| "):
            found.append(line)
    return found


ROWS = rows(EVIDENCE, "what happens")
THREATS = rows(EVIDENCE, "threat")
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
HOSTILE = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "internals" / "hostile-input.md").read_text())
SCENARIOS = {path.stem for path in (ROOT / "tests" / "scenarios" / "races").glob("*.txt")}


OPERATOR = ROOT / "operator" / "elasticjob_operator"
EVENT = re.compile(r'(?:\.event\(|\bEvent\(|^ {4}event =)\s*"(\w+)"', re.MULTILINE)
CLOSES = re.compile(r'_close\(\s*p,\s*Outcome\.FAILED,\s*"(\w+)"')


def explained(page: str, first: str) -> dict[str, list[str]]:
    """What stands as code in the first column of these tables, with the other columns."""
    found = {}
    for row in rows(page, first):
        name, *others = [cell.strip() for cell in row.strip("|").split("|")]
        found.update(dict.fromkeys(re.findall(r"`(\w+)`", name), others))
    return found


def said(pattern: re.Pattern[str]) -> set[str]:
    """What the operator's source says by this pattern."""
    files = OPERATOR.rglob("*.py")
    return {name for path in files for name in pattern.findall(path.read_text())}


def by_first_column(row: str) -> str:
    """A test's name."""
    return row.split("|")[1].strip()[:60]


def shown(row: str, columns: int) -> list[str]:
    """What a row names as its proof; all of it is there."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == columns
    assert all(cells)
    names = re.findall(r"`([^`]+)`", cells[-1])
    assert names
    for name in names:
        there = (ROOT / name).exists() if "/" in name else name in TESTS | SCENARIOS
        assert there, f"{name} is no test, and no scenario"
    return names


@pytest.mark.parametrize("row", ROWS, ids=by_first_column)
def test_every_row_is_shown_by_something_that_there_is(row: str) -> None:
    assert shown(row, 4)


@pytest.mark.parametrize("row", THREATS, ids=by_first_column)
def test_every_threat_has_a_test(row: str) -> None:
    assert shown(row, 2)


@pytest.mark.parametrize(("page", "first"), [(WHAT_HAPPENS, "what happens"), (SECURITY, "threat")])
def test_the_evidence_has_every_row_of_the_page_that_people_read(page: str, first: str) -> None:
    told, proved = ([row.split("|")[1].strip() for row in rows(one, first)] for one in (page, EVIDENCE))
    assert told == proved
    assert len(told) > 15


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("use/*.md")), ids=lambda page: page.stem)
def test_what_users_read_names_no_test(page: Path) -> None:
    read = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"`(?:test_\w+|tests/[^`]*)`", read) == []


PEOPLE_READ = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "charts" / "elasticjob" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
GENERATED = {"docs/reference/resource.md", "docs/internals/commands-not-run.md"}
QUOTED = re.compile(r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"|<!--.*?-->|\n> [^\n]*|\]\([^)]*\)", re.DOTALL)
PRIVATE = re.compile(
    r"\b(?:whom|whoever|somebody|nobody|everybody|anybody|anew|bears?|beats?|for so long|so many"
    r"|others' pods|pods of others|(?:pods?|members?|agents?|process(?:es)?|Leases?) who|given up)\b",
    re.IGNORECASE,
)
"""Words that the glossary has better ones for. What the program itself says may be quoted."""


@pytest.mark.parametrize("page", PEOPLE_READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_document_is_in_the_words_of_the_glossary(page: Path) -> None:
    if str(page.relative_to(ROOT)) not in GENERATED:
        assert PRIVATE.findall(QUOTED.sub(" ", page.read_text())) == []


def test_what_hostile_input_is_said_to_be_shown_by_is_there() -> None:
    assert len(HOSTILE) > 20
    assert not set(HOSTILE) - TESTS


def test_every_cause_is_explained_with_its_account() -> None:
    table = explained(STATUS, "cause")
    accounts = {cause: told[0].partition(",")[0] for cause, told in table.items() if cause != "Started"}
    assert accounts == CAUSES
    assert {cause for cause, told in table.items() if "not charged" in told[0]} == NEVER_CHARGED


def test_every_event_is_explained() -> None:
    assert said(EVENT) | {f"Job{outcome.value}" for outcome in Outcome} == set(explained(STATUS, "reason"))


def test_every_reason_of_failed_is_explained() -> None:
    limits = {f"{account.capitalize()}RestartsExhausted" for account in ACCOUNTS if account != SCALING}
    assert said(CLOSES) | limits == set(explained(STATUS, "Failed's reason"))
