"""The commands that documents tell to run: for the tests that run them, and for a page of the rest.

    python -m tests.docs_commands                        writes docs/internals/commands-not-run.md
    python -m tests.docs_commands run DOCUMENT NAME...   runs blocks of a document: what GitHub's workflows do

A fence of shell commands has a mark in the line before it, which a reader of the rendered page does not see:

    <!-- test: NAME -->               a test runs it, with the others of the document that have this name
    <!-- workflow: NAME; REASON -->   no test can, and why; a workflow below .github does, by this name
    <!-- not run: REASON -->          neither can, and why

A block is a script for bash and nothing else: no prompts, no output. What differs from machine to machine is
a variable that the text tells to set, and the test sets. What a terminal shows, prompt and output, is fenced
as ``console`` and marked, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
_PACKAGES = ("client", "devcluster", "handler", "operator")
_FOLDERS = ("", *_PACKAGES, "benchmarks", "charts", "docker", "docs", "examples", "tests")
_SHELL = ("sh", "bash", "shell", "console")
_FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (test|not run|workflow): (.+) -->\n\Z")


@dataclass(frozen=True)
class Block:
    """A fence of shell commands, and what its mark says. ``name``: by which a test or a workflow runs it.
    ``not_run``: why no test does. Both empty: it has no mark."""

    text: str
    line: int
    name: str = ""
    not_run: str = ""

    @property
    def test(self) -> str:
        """Its name, if a test runs it."""
        return "" if self.not_run else self.name

    @property
    def workflow(self) -> str:
        """Its name, if a workflow runs it."""
        return self.name if self.not_run else ""


def blocks(document: str) -> Iterator[Block]:
    """The blocks of shell commands in a document in Markdown, and every other block that has a mark."""
    for fence in _FENCE.finditer(document):
        mark = _MARK.search(document, 0, fence.start())
        if mark is None and fence[1] not in _SHELL:
            continue
        kind, said = mark.groups() if mark else ("", "")
        name, _, why = said.partition("; ") if kind == "workflow" else (said, "", "")
        yield Block(
            fence[2],
            document.count("\n", 0, fence.start()) + 1,
            name="" if kind == "not run" else name,
            not_run=said if kind == "not run" else why,
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
                why = f"{block.not_run}{' (a GitHub workflow is to run it)' if block.workflow else ''}"
                rows.append(f"| {where} | `{first}` | {why} |\n")
    return _HEAD + "".join(rows)


def script(document: Path, name: str) -> str:
    """All blocks of the document with this name, in order. Raises ValueError if there is none."""
    found = [block.text for block in blocks(document.read_text()) if block.name == name]
    if not found:
        raise ValueError(f"{document} has no block of the name {name}")
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


def main(arguments: list[str]) -> int:
    """Exit code: that of the blocks, if some are to be run."""
    if not arguments:
        PAGE.write_text(page())
        return 0
    if arguments[0] != "run" or len(arguments) < 3:
        print(__doc__)
        return 2
    _, document, *names = arguments
    commands = "".join(script(ROOT / document, name) for name in names)
    return subprocess.run(["bash", "-euxo", "pipefail", "-c", commands], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
