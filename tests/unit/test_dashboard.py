"""The dashboard asks for what the operator has, explains itself, and nothing of it lies upon another."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from charts import dashboard, generate
from charts.grafana import COLUMNS, Panel, Query, Row
from charts.grafana import dashboard as made_of
from elasticjob_operator.metrics.families import ALL, Kind
from elasticjob_operator.metrics.meter import Meter
from tests.unit.test_alerts import ALERTS, RUNBOOKS, runbook, wrong_in
from tests.unit.test_docs import PRIVATE

SHOWN: dict[str, Any] = json.loads(generate.DASHBOARD.read_text())
PANELS: dict[str, dict[str, Any]] = {
    f"{panel['id']:02}-{panel['title']}": panel for panel in SHOWN["panels"] if panel["type"] != "row"
}
QUERIES = [
    pytest.param(panel, target, id=f"{name}-{target['refId']}")
    for name, panel in PANELS.items()
    for target in panel["targets"]
]
VARIABLES: dict[str, dict[str, Any]] = {one["name"]: one for one in SHOWN["templating"]["list"]}
OF_GRAFANA = {"__rate_interval", "__range"}
UNITS = {"none", "s", "percentunit", "reqps", "bytes"}
"""Grafana's own; besides, whatever begins with ``suffix:``."""
OF_OTHERS = {"ALERTS", "process_cpu_seconds_total", "process_resident_memory_bytes"}
WHOLE_LIFE = "elasticjob_job_restarts_total"
"""A counter that the status keeps: what it says is of use as it is."""

_SERIES = re.compile(r"\b(\w+)\{([^}]*)\}(\[?)")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")


def grouped(expression: str) -> set[str]:
    """The labels that its series have."""
    return {label.strip() for group in _GROUPED.findall(expression) for label in group.split(",")}


def test_the_file_is_the_one_that_is_generated() -> None:
    assert generate.DASHBOARD.read_text() == dashboard.file(), "run python -m charts.generate"


def test_there_is_a_row_for_each_question() -> None:
    rows = [panel["title"] for panel in SHOWN["panels"] if panel["type"] == "row"]
    assert rows == [row.title for row in dashboard.ROWS]
    assert len(rows) == 5
    assert SHOWN["panels"][0]["type"] == "row", "what comes first has a heading, too"


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert re.fullmatch(r"[A-Z].*\.", panel["description"])
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS or defaults["unit"].startswith("suffix:")
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert panel["datasource"]["uid"] == "${datasource}"
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


def test_ids_are_unique_and_nothing_lies_upon_another() -> None:
    every = SHOWN["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= COLUMNS
        covered = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not covered & cells, panel["title"]
        cells |= covered
    last = max(y for _, y in cells)
    assert len(cells) == COLUMNS * (last + 1), "there are no holes"
    for one, other in combinations(every, 2):
        assert one["title"] != other["title"]


def test_a_line_that_does_not_fill_the_grid_is_an_error() -> None:
    panel = Panel("stat", "a", "b", (Query("1"),), width=23)
    with pytest.raises(ValueError, match=r"\['a'\] are 23 columns wide, not 24"):
        made_of(uid="u", title="t", description="d", rows=[Row("r", ((panel,),))], variables=[])


@pytest.mark.parametrize(("panel", "target"), QUERIES)
def test_a_query_asks_for_what_the_operator_has(panel: dict[str, Any], target: dict[str, Any]) -> None:
    expression = target["expr"]
    assert set(wrong_in(expression)) <= ({"alertname"} if "ALERTS{" in expression else set())
    found = _SERIES.findall(expression)
    assert found
    counters = {metric.name for metric in ALL if metric.kind is Kind.COUNTER} - {WHOLE_LIFE}
    for name, matchers, ranged in found:
        assert name.startswith("elasticjob_") or name in OF_OTHERS
        if name != "ALERTS":
            assert matchers.startswith('namespace="$namespace", pod=~"$operator-[0-9a-z]+-[0-9a-z]+"')
        assert ranged or name not in counters, f"{name} without rate or increase"
    assert target["instant"] is not target["range"]
    assert "$__range]" not in expression or target["instant"], "it would be asked for each point"
    assert panel["title"]


@pytest.mark.parametrize(("panel", "target"), QUERIES)
def test_what_a_series_is_called_is_a_label_of_it(panel: dict[str, Any], target: dict[str, Any]) -> None:
    labels = grouped(target["expr"])
    named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    if panel["type"] == "table":
        (organized,) = panel["transformations"]
        assert set(organized["options"]["renameByName"]) == labels | {"Value"}
    elif labels:
        assert named >= labels - {"le"}, "two series would have one name"
    assert named <= labels


@pytest.mark.parametrize("name", sorted(OF_OTHERS - {"ALERTS"}))
def test_what_the_process_shows_of_itself_is_there(name: str) -> None:
    assert f"\n{name} " in Meter().text(lambda: ()).decode()


def test_every_variable_that_is_used_is_there() -> None:
    text = json.dumps([SHOWN["panels"], SHOWN["templating"]])
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert used == {*VARIABLES} | OF_GRAFANA
    assert VARIABLES["datasource"]["type"] == "datasource"
    for one in VARIABLES.values():
        if one["type"] == "query":
            series, label = re.fullmatch(
                r"label_values\((\w+(?:\{.*\})?), (\w+)\)", one["definition"]
            ).groups()  # type: ignore[union-attr]
            assert wrong_in(f"sum by ({label}) ({series})") == []


def test_the_operator_is_what_its_pods_names_begin_with() -> None:
    regex = VARIABLES["operator"]["regex"].strip("/")
    assert re.fullmatch(regex, "elasticjob-team-a-7d9f6c-x2x4q")[1] == "elasticjob-team-a"  # type: ignore[index]


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_panel_that_leads_to_its_runbook(name: str) -> None:
    page = f"${{runbooks}}/docs/operate/runbooks/{runbook(ALERTS[name]).name}"
    links = [link for panel in PANELS.values() for link in panel.get("links", ())]
    assert {link["title"] for link in links if link["url"] == page} == {f"Runbook of {name}"}


def test_every_link_leads_to_a_runbook() -> None:
    pages = {f"${{runbooks}}/docs/operate/runbooks/{page.name}" for page in RUNBOOKS.iterdir()}
    for panel in PANELS.values():
        assert {link["url"] for link in panel.get("links", ())} <= pages


def test_documents_name_panels_that_there_are() -> None:
    titles = {panel["title"] for panel in SHOWN["panels"]}
    pages = [page.read_text() for page in (generate.ROOT / "docs" / "operate").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r'\b(?:panel|row) "([^"]+)"', page)}
    assert len(named) >= 4
    assert named <= titles


def test_the_page_has_a_line_for_each_row() -> None:
    page = (generate.ROOT / "docs" / "operate" / "dashboard.md").read_text()
    titles = [row.title.partition(":")[0] for row in dashboard.ROWS]
    assert re.findall(r"^\| ([A-Z][^|]*) \|", page, re.MULTILINE) == titles


def test_the_dashboard_is_in_the_words_of_the_glossary() -> None:
    texts = [text for panel in PANELS.values() for text in (panel["title"], panel["description"])]
    assert [text for text in texts if PRIVATE.search(text)] == []
