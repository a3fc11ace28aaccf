"""What the repository refers to is in the repository: documents, invariants, files, tests and scenarios."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
INVARIANTS = ROOT / "docs" / "internals" / "invariants.md"
DEFECTS = ROOT / "docs" / "internals" / "conformance.md"
FOLDERS = (
    "benchmarks",
    "charts",
    "client",
    "crds",
    "deploy",
    "devcluster",
    "docker",
    "docs",
    "examples",
    "handler",
    "operator",
    "tests",
)
KINDS = {".md", ".py", ".txt", ".yaml", ".yml", ".tpl", ".toml", ".Dockerfile", ""}
UPSTREAM = "docs/internals/conformance.md"
GENERATED = ("docs/internals/commands-not-run.md",)

OUTSIDE = re.compile(r"\b(?:design|facts)(?:\.md)?[,:]? \(?(?:sections? I?\d|I?\d+\b)", re.IGNORECASE)
"""A section of a document that is nowhere here."""
NUMBERED = re.compile(r"\b([ID])(\d+)\b")
"""An invariant, or a defect of c10d."""
PATH = re.compile(
    r"(?<![\w./$-])((?:" + "|".join(FOLDERS) + r")/[\w./-]*\w\.(?:md|py|txt|yaml|toml|tpl|Dockerfile))\b"
)
MODULE = re.compile(r"`((?:\w+/)*\w+\.py)`")
TEST = re.compile(r"`(test_\w+)`")
OF_TORCH = ("torch/", "test/")
USERS = {"prep.py"}
"""Scripts that examples speak of."""


@cache
def texts() -> dict[str, str]:
    """Every text that people read here, by its path; a paragraph that wraps is one line."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    files += [path for path in ROOT.iterdir() if path.suffix in KINDS]
    found = {}
    for path in sorted(files):
        name = str(path.relative_to(ROOT))
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
        if path.is_file() and path.suffix in KINDS and not hidden and path != Path(__file__):
            found[name] = re.sub(r"\s*\n[#>\s]*", " ", path.read_text(errors="replace"))
    return found


def documents() -> Iterator[tuple[str, str]]:
    """Documents by their path, without the column that has the names of torch's own tests."""
    for name in texts():
        if name.endswith(".md") and name not in GENERATED:
            text = (ROOT / name).read_text()
            yield name, re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE) if name == UPSTREAM else text


def dangling(pattern: re.Pattern[str], known: set[str]) -> list[str]:
    """Where a document names something by this pattern that is not known."""
    return [
        f"{name}: {found}"
        for name, text in documents()
        for found in pattern.findall(text)
        if found not in known
    ]


@cache
def headings() -> set[int]:
    return {int(n) for n in re.findall(r"^## I(\d+): \w", INVARIANTS.read_text(), re.MULTILINE)}


def known_tests() -> set[str]:
    files = [
        name for name in texts() if name.startswith(("tests/", "devcluster/tests/")) and name.endswith(".py")
    ]
    defined = {n for name in files for n in re.findall(r"def (test_\w+)", (ROOT / name).read_text())}
    return defined | {Path(name).stem for name in files}


def scenarios() -> set[str]:
    return {path.stem for path in (ROOT / "tests" / "scenarios" / "races").glob("*.txt")}


def test_texts_are_read() -> None:
    assert len(texts()) > 500
    assert {"README.md", "Makefile", "handler/elasticjob/agent/handler.py", "docs/README.md"} <= set(texts())


def test_nothing_refers_to_a_document_that_is_not_here() -> None:
    assert [f"{name}: {found}" for name, text in texts().items() for found in OUTSIDE.findall(text)] == []


def test_the_invariants_are_numbered_without_a_gap() -> None:
    assert headings() == set(range(1, len(headings()) + 1))


def test_every_number_that_is_cited_is_explained() -> None:
    defects = {int(n) for n in re.findall(r"^\| D(\d+): ", DEFECTS.read_text(), re.MULTILINE)}
    dead = [
        f"{name}: {letter}{number}"
        for name, text in texts().items()
        for letter, number in NUMBERED.findall(text)
        if int(number) not in (headings() if letter == "I" else defects)
    ]
    assert dead == []


def test_the_examples_of_the_invariants_are_there() -> None:
    named = [
        name
        for examples in re.findall(r"\*Examples?:(.*?)\*", INVARIANTS.read_text(), re.DOTALL)
        for name in re.findall(r"`(\w+)`", examples)
    ]
    assert len(named) >= len(headings())
    assert set(named) - known_tests() - scenarios() == set()


def test_every_path_that_is_named_is_there() -> None:
    dead = [
        f"{name}: {path}"
        for name, text in texts().items()
        for path in PATH.findall(text)
        if not (ROOT / path).exists()
    ]
    assert dead == []


def test_every_module_that_a_document_names_is_there() -> None:
    known = {
        "/".join(Path(name).parts[first:])
        for name in texts()
        if name.endswith(".py")
        for first in range(len(Path(name).parts))
    }
    dead = [found.split(": ")[1] for found in dangling(MODULE, known | USERS)]
    assert [name for name in dead if not name.startswith(OF_TORCH) and not name.endswith("_test.py")] == []


def test_every_test_that_a_document_names_is_there() -> None:
    assert dangling(TEST, known_tests()) == []


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("as said (design, section 4)", True),
        ("(facts.md, section 5)", True),
        ("(facts 2.3, D1)", True),
        ("(design, I9)", True),
        ("the invariants of the design (section 4)", True),
        ("(design, 5)", True),
        ("may be read by design", False),
        ("facts = 5", False),
    ],
)
def test_what_is_taken_for_a_reference_to_elsewhere(text: str, outside: bool) -> None:
    assert bool(OUTSIDE.search(text)) is outside
