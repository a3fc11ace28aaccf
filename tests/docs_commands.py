"""The commands that documents tell to run: for the tests that run them, and for a page of the rest.

    python -m tests.docs_commands      writes docs/internals/commands-not-run.md

A fence of shell commands has a mark in the line before it, which a reader of the rendered page does not see:

    <!-- test: NAME -->          a test runs it, together with the others of the document that have this name
    <!-- not run: REASON -->     no test can, and why

A block is a script for bash and nothing else: no prompts, no output. What differs from machine to machine is
a variable that the text tells to set, and the test sets. What a terminal shows, prompt and output, is fenced
as ``console`` and marked, too.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PAGE = ROOT / "docs" / "internals" / "commands-not-run.md"
"""Made of the marks."""

_HEAD = """\
# Commands that no test runs

Every other block of commands in these documents is run by a test, in these words. Here are the rest, and
why; made from the marks in the documents by `python -m tests.docs_commands`.

| document | begins with | why it is not run |
|---|---|---|
"""
_PACKAGES = ("devcluster", "handler", "operator")
_FOLDERS = ("", *_PACKAGES, "benchmarks", "charts", "docker", "docs", "examples", "tests")
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


def documents() -> list[Path]:
    """All documents of the repository."""
    found = {file for folder in _FOLDERS for file in (ROOT / folder).glob("**/*.md" if folder else "*.md")}
    return sorted(found, key=lambda file: (len(file.relative_to(ROOT).parts), file))


def page() -> str:
    """What docs/internals/commands-not-run.md shall be."""
    rows = []
    for document in documents():
        name = document.relative_to(ROOT)
        where = f"[{name}]({os.path.relpath(document, PAGE.parent)})"
        for block in blocks(document.read_text()):
            if block.not_run:
                first = re.sub(r"(^\$ )|(\s*(\\|#.*)$)", "", block.text.splitlines()[0])
                rows.append(f"| {where} | `{first}` | {block.not_run} |\n")
    return _HEAD + "".join(rows)


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


if __name__ == "__main__":
    PAGE.write_text(page())
