"""The commands that a document tells to run, for the test that runs them.

A fence of shell commands has a mark in the line before it, which a reader of the rendered page does not see:

    <!-- test: NAME -->          a test runs it, together with the others of the document that have this name
    <!-- not run: REASON -->     no test can, and why

A block is a script for bash and nothing else: no prompts, no output. What differs from machine to machine is
a variable that the text tells to set, and the test sets.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_SHELL = ("sh", "bash", "shell", "console")
_FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (test|not run): (.+) -->\n\Z")


@dataclass(frozen=True)
class Block:
    """A fence of shell commands. ``test`` or ``not_run`` is what its mark says; both empty: it has none."""

    text: str
    line: int
    test: str = ""
    not_run: str = ""


def blocks(document: str) -> Iterator[Block]:
    """The blocks of shell commands in a document in Markdown, and every other block that has a mark."""
    for fence in _FENCE.finditer(document):
        mark = _MARK.search(document, 0, fence.start())
        if mark is None and fence[1] not in _SHELL:
            continue
        kind, said = mark.groups() if mark else ("", "")
        yield Block(
            fence[2],
            document.count("\n", 0, fence.start()) + 1,
            test=said if kind == "test" else "",
            not_run=said if kind == "not run" else "",
        )


def script(document: Path, test: str) -> str:
    """All blocks of the document with this name, in order. Raises ValueError if there is none."""
    found = [block.text for block in blocks(document.read_text()) if block.test == test]
    if not found:
        raise ValueError(f"{document} has no block with the line <!-- test: {test} -->")
    return "".join(found)


def run(document: Path, test: str, environment: Mapping[str, str], timeout: float = 240.0) -> str:
    """Run them as one script in the repository's root, to the first error; returns what it printed.

    Raises AssertionError with that if it fails.
    """
    finished = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script(document, test)],
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    said = f"{document}, {test}: ended with {finished.returncode}\n{finished.stdout}"
    assert finished.returncode == 0, said
    return finished.stdout
