"""What shows each promise of the documents: the tables of docs/internals/evidence.md, made of marks on tests.

    python -m tests.evidence    writes them

A test says what it shows in comments right above it, a scenario at its top, and a file as a whole in
comments with a blank line below:

    # shows: a worker process dies
    # shows: a worker fails, and workers of other pods fail ...

The words are a row's first column in docs/reference/what-happens.md or docs/operate/security.md, or how it
begins.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "internals" / "evidence.md"
PAGES = {"reference/what-happens.md": "what happens", "operate/security.md": "threat"}
"""The pages with promises, and the heading of the first column of their tables."""
_MADE = re.compile(r"(<!-- tables of ([\w./-]+), [^\n]*-->\n).*?(?=<!-- end -->)", re.DOTALL)
_MARKS = re.compile(
    r"((?:^ *# shows: .*\n)+)(?:(?: *@.*\n)* *(?:async )?def (test_\w+)|(?=\n))", re.MULTILINE
)


def main() -> None:
    """Write the tables."""
    PAGE.write_text(made(PAGE.read_text()))


def made(text: str) -> str:
    """The page with the promises and marks of now. Raises ValueError for a mark that names no row."""
    return _MADE.sub(lambda found: found[1] + tables(found[2]), text)


def tables(page: str) -> str:
    """A table for each of the page's, below its heading."""
    text, shown = "", shown_by()
    for heading, rows in _tables(page):
        text += f"\n### {heading}\n\n| {PAGES[page]} | shown by |\n|---|---|\n"
        text += "".join(f"| {row} | {', '.join(f'`{name}`' for name in shown[row])} |\n" for row in rows)
    return text + "\n"


def promises() -> list[str]:
    """The first column of every row."""
    return [row for page in PAGES for _, rows in _tables(page) for row in rows]


def shown_by() -> dict[str, list[str]]:
    """By row: tests and files in their order, then scenarios."""
    rows = promises()
    found: dict[str, list[str]] = defaultdict(list)
    for name, words in sorted(marks(), key=lambda mark: (not mark[0].startswith("test"), mark[0])):
        found[row_of(words, rows)].append(name)
    return found


def marks() -> Iterator[tuple[str, str]]:
    """All (name, words): of tests by function, of scenarios by name, of files by path. Raises
    ValueError for a mark that belongs to none of them."""
    for file in {*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}:
        text, name = file.read_text(), str(file.relative_to(ROOT))
        marked = _MARKS.findall(text)
        found = [(test or name, words) for comments, test in marked for words in _words(comments)]
        if len(found) != len(_words(text)):
            raise ValueError(f"{name} has a mark neither above a test nor above a blank line")
        yield from found
    for file in (ROOT / "tests" / "scenarios" / "races").glob("*.txt"):
        for words in _words(file.read_text()):
            yield file.stem, words


def _words(text: str) -> list[str]:
    return re.findall(r"^ *# shows: (.*)$", text, re.MULTILINE)


def row_of(words: str, rows: Sequence[str]) -> str:
    """The row that a mark means. Raises ValueError unless there is exactly one."""
    begun = [row for row in rows if words.endswith("...") and row.startswith(words.removesuffix("..."))]
    found = [words] if words in rows else begun
    if len(found) != 1:
        raise ValueError(f"'# shows: {words}' is the beginning of {len(found)} rows of the documents")
    return found[0]


def _tables(page: str) -> Iterator[tuple[str, list[str]]]:
    """Of each table with promises, the heading above it and the first column."""
    heading = ""
    rows: list[str] | None = None
    for line in [*(DOCS / page).read_text().splitlines(), ""]:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith(f"| {PAGES[page]} |"):
            rows = []
        elif rows is not None and line.startswith("| "):
            rows.append(line.split("|")[1].strip())
        elif rows is not None and not line.startswith("|"):
            yield heading, rows
            rows = None


if __name__ == "__main__":
    main()
