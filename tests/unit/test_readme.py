"""The README is in the order in which a stranger asks: what it is, for whom, how far it is, how to try it."""

from __future__ import annotations

import re

from tests.docs_commands import ROOT

README = (ROOT / "README.md").read_text()
ORDER = (
    "It is for",
    "**State:",
    "docs/pictures/report.png",
    "make demo",
    "make test  ",
    "kind: ElasticJob",
    "elasticjob why",
    "helm install",
    "| c10d |",
    "## Why not",
    "## Read on",
)
MINUTE = 20
"""Lines that are read in a minute."""


def test_what_a_reader_wants_comes_in_that_order() -> None:
    places = [README.find(text) for text in ORDER]
    assert -1 not in places, ORDER[places.index(-1)]
    assert places == sorted(places)


def test_its_first_minute_says_the_state_and_the_two_commands() -> None:
    prose = re.sub(r"<!--.*?-->|\n\s*\n", "\n", README, flags=re.DOTALL)
    first = "\n".join(prose.splitlines()[:MINUTE])
    for said in ("0.1.0", "alpha", "not tested on GPUs", "No image", "make demo", "make test"):
        assert said in first, said


def test_it_fits_into_a_few_screens() -> None:
    shown = [line for line in README.splitlines() if line.strip() and not line.startswith("<!--")]
    assert len(shown) <= 100


def test_a_row_of_figures_says_what_it_means() -> None:
    table = README[README.index("| c10d |") :].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:] if not line.startswith("| **")]
    assert len(rows) >= 5
    assert [row[0] for row in rows if len(row) != 4 or not row[3].strip()] == []
