"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs_commands import ROOT, documents

_CODE = re.compile(r"```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
DOCUMENTS = {str(document.relative_to(ROOT)): document for document in documents()}
INDEX = ROOT / "docs" / "README.md"


def links(document: Path) -> list[str]:
    """Where a document's links lead, but for those into the world."""
    return [link for link in _LINK.findall(_CODE.sub("`", document.read_text())) if "://" not in link]


def anchors(document: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for heading in _HEADING.findall(text):
        shown = _LINK.sub("", heading.replace("[", "")) if "](" in heading else heading
        found.add(re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    document = DOCUMENTS[name]
    dead = []
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_index_leads_to_every_page() -> None:
    linked = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links(INDEX)}
    pages = [page for page in sorted(INDEX.parent.rglob("*.md")) if page != INDEX]
    assert [str(page.relative_to(INDEX.parent)) for page in pages if page not in linked] == []
