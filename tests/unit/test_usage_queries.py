"""What each team used (docs/operate/many-teams.md): the queries ask for what the operator exports.

`tests/monitoring/test_usage.py` has their answers, by promtool.
"""

from __future__ import annotations

import re

import pytest

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.metrics import jobs
from tests.docs_commands import ROOT
from tests.unit.test_metrics import WALL, view

PAGE = ROOT / "docs" / "operate" / "many-teams.md"
_ROW = re.compile(r"^\| (?!question )(.+?) \| `(.+)` \|$", re.MULTILINE)


def section() -> str:
    """The part of the page."""
    return PAGE.read_text().partition("\n## What each team used\n")[2].partition("\n## ")[0]


QUERIES = dict(_ROW.findall(section()))
"""By the question that each answers."""
OURS = {question: query for question, query in QUERIES.items() if "elasticjob_job_" in query}
OTHERS = {question: query for question, query in QUERIES.items() if question not in OURS}


def test_the_page_has_queries_of_ours_and_one_of_gpus() -> None:
    assert (len(OURS), len(OTHERS)) == (3, 1)


@pytest.mark.parametrize("query", OURS.values(), ids=OURS)
def test_the_operator_exports_what_a_query_names(query: str) -> None:
    """For each job, with the labels by which the query sums."""
    exported = {one.metric.name: one.metric.labels for one in jobs.samples([view("a")], 0, WALL, True, 9, {})}
    grouped = {label.strip() for labels in re.findall(r"by \((.*?)\)", query) for label in labels.split(",")}
    names = re.findall(r"\belasticjob_\w+", query)
    assert names
    assert grouped
    for name in names:
        assert grouped <= set(exported[name])


@pytest.mark.parametrize("query", OTHERS.values(), ids=OTHERS)
def test_pods_are_found_by_the_label_that_they_have(query: str) -> None:
    """kube-state-metrics exports a label in its own spelling, and only those that it is allowed to."""
    assert re.findall(r"\blabel_\w+", query) == ["label_" + re.sub(r"\W", "_", JOB_LABEL)]
    assert f"--metric-labels-allowlist=pods=[{JOB_LABEL}]" in section()
