"""What documents call shown is there to be run. What the operator may say is explained: causes, Events, and
the reasons of Failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticjob.contract.round_record import Outcome
from elasticjob_operator.plan.state.evidence import ACCOUNTS, CAUSES, NEVER_CHARGED, SCALING
from tests import evidence

ROOT = Path(__file__).resolve().parent.parent.parent
WHAT_HAPPENS, STATUS = "reference/what-happens.md", "reference/status.md"


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


PROMISES = evidence.promises()
SHOWN = evidence.shown_by()
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
HOSTILE = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "internals" / "hostile-input.md").read_text())


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


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise[:60])
def test_every_promise_is_shown_by_a_test_or_a_scenario(promise: str) -> None:
    assert SHOWN[promise]


def test_the_evidence_is_that_of_the_marks_and_names_only_tests() -> None:
    page = evidence.PAGE.read_text()
    assert page == evidence.made(page), "run python -m tests.evidence"
    for first in evidence.PAGES.values():
        assert page.count(f"| {first} | shown by |") >= 4
    assert not set(re.findall(r"`(test_\w+)`", page)) - TESTS


@pytest.mark.parametrize("words", ["a worker wins", "a worker process", "a ..."])
def test_a_mark_names_one_row(words: str) -> None:
    with pytest.raises(ValueError, match="is the beginning of"):
        evidence.row_of(words, PROMISES)


def test_every_row_of_what_happens_says_what_notices_it() -> None:
    told = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in rows(WHAT_HAPPENS, "what happens")
    ]
    assert len(told) > 100
    assert [cells[0] for cells in told if len(cells) != 4 or not all(cells)] == []


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
