"""What the programs say in Events, conditions, logs, errors and on screens is in the glossary's words.
Docstrings and comments are in words that a stranger understands at first reading."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path
    for package in ("operator/elasticjob_operator", "handler/elasticjob", "client/elasticjob_client")
    for path in (ROOT / package).rglob("*.py")
)
PRIVATE = re.compile(
    r"\b(?:who|whom|whoever|somebody|nobody|everybody|anybody|anew|bears?|beats?|for so long|so many|can't"
    r"|are needed|are wanted|pods of others|let in|given up on)\b",
    re.IGNORECASE,
)

UNCLEAR = re.compile(
    r"\b(?i:told|whatever|whoever|whom|nobody|somebody|everybody|anybody|anew|for want of|in vain)\b"
    r"|\b(?i:all the same|so many|stands? still)\b|\bnone but|\bis none the\b"
    r"|\b(?:what|that|one|which|an? \w+ that) is none\b"
)
"""In docstrings and comments: words that have to be read twice."""
ONE_OR_MORE = re.compile(
    r"(?<!to )(?<!of )(?<!of the )(?<!all )(?<!at most )\.\.\. (?:more |other )?(?:members|pods|workers"
    r"|ranks|processes|rounds|restarts|replicas|nodes|spares|jobs|checkpoints|participants|peers)\b"
)
"""A number that may be one before a plural: ``counted`` is for it."""
SEVERAL = (
    "after ... workers had succeeded",
    "its PodGroup gathers ... pods; the job needs",
    "torchrun has started ... ranks",
    "the PodDisruptionBudget ... pods",
    "which ... ranks cannot divide",
    "will grow when ... replicas have joined",
)
"""Where the number is more than one, or is none."""
EXPLAINED = ("operator/elasticjob_operator", "handler/elasticjob", "client/elasticjob_client", "benchmarks")
READ = sorted(path for package in EXPLAINED for path in (ROOT / package).rglob("*.py"))


def explanations(module: Path) -> Iterator[str]:
    """Docstrings, also those of fields and constants, and comments."""
    text = module.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.parametrize("module", READ, ids=lambda module: str(module.relative_to(ROOT)))
def test_explanations_are_understood_at_first_reading(module: Path) -> None:
    assert [text for text in explanations(module) if UNCLEAR.search(text)] == []


def test_there_are_explanations() -> None:
    assert sum(1 for module in READ for _ in explanations(module)) > 2000


def sentences(module: Path) -> Iterator[str]:
    """The texts of a module that have a space, without docstrings; ``...`` stands for what is filled in."""
    tree = ast.parse(module.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in alone | within:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "..." for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if " " in text:
            yield text


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_what_people_read_is_in_the_words_of_the_glossary(module: Path) -> None:
    assert [text for text in sentences(module) if PRIVATE.search(text)] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_one_of_a_thing_is_no_plural(module: Path) -> None:
    assert [
        text
        for text in sentences(module)
        if ONE_OR_MORE.search(text) and not any(one in text for one in SEVERAL)
    ] == []


def test_there_are_sentences() -> None:
    assert sum(1 for module in MODULES for _ in sentences(module)) > 300
