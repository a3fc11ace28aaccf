"""Alerts ask for metrics that the operator has, and each has a page that says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.generate import CHART, ROOT
from elasticjob_operator.metrics.families import ALL, Kind

RULES = CHART / "files" / "alerts.yaml"
PAGE = ROOT / "docs" / "operate" / "alerts.md"
RUNBOOKS = ROOT / "docs" / "operate" / "runbooks"
UNIT_TESTS = ROOT / "tests" / "monitoring" / "alerts.test.yaml"
OF_THE_SCRAPE = {"namespace", "pod"}
"""Labels that Prometheus gives to what it scrapes."""
HEADINGS = ["## Find the cause", "## What to do"]

_SERIES = re.compile(r"\b(elasticjob_\w+)(?:\{([^}]*)\})?")
_MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPED = re.compile(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)")


def exported() -> dict[str, set[str]]:
    """Labels of every series that the operator shows, by its name."""
    found: dict[str, set[str]] = {}
    for metric in ALL:
        labels = set(metric.labels)
        if metric.kind is Kind.HISTOGRAM:
            found[f"{metric.name}_bucket"] = labels | {"le"}
            found[f"{metric.name}_sum"] = found[f"{metric.name}_count"] = labels
        else:
            found[metric.name] = labels
    return found


def wrong_in(expression: str) -> list[str]:
    """What an expression names that no series of the operator has."""
    known, wrong = exported(), []
    labels: set[str] = set(OF_THE_SCRAPE)
    for name, matchers in _SERIES.findall(expression):
        if name not in known:
            wrong.append(name)
            continue
        labels |= known[name]
        named = set(_MATCHED.findall(matchers))
        wrong += [f"{name}{{{label}}}" for label in sorted(named - known[name] - OF_THE_SCRAPE)]
    grouped = {part.strip() for group in _GROUPED.findall(expression) for part in group.split(",")} - {""}
    return wrong + sorted(grouped - labels)


def alerts() -> list[dict[str, Any]]:
    """The rules of the chart's file."""
    found = yaml.safe_load(RULES.read_text())
    assert set(found) == {"groups"}
    return [rule for group in found["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in alerts()}


def runbook(alert: dict[str, Any]) -> Path:
    """The page that an alert leads to."""
    return ROOT / str(alert["annotations"]["runbook_url"])


def test_there_is_an_alert_once() -> None:
    assert len(alerts()) == len(ALERTS) >= 8


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_all_that_is_needed(name: str) -> None:
    alert = ALERTS[name]
    assert name.startswith("ElasticJob")
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_for_what_the_operator_has(name: str) -> None:
    expression = ALERTS[name]["expr"]
    assert _SERIES.search(expression)
    assert wrong_in(expression) == []


@pytest.mark.parametrize("name", ALERTS)
def test_every_series_is_one_of_this_release(name: str) -> None:
    for series, matchers in _SERIES.findall(ALERTS[name]["expr"]):
        assert matchers.startswith('namespace="elasticjob-system", pod=~"elasticjob-'), series


def test_what_no_series_has_is_found() -> None:
    assert wrong_in('sum by (kind, zone) (elasticjob_jobs{stat="x", pod="y"}) > elasticjob_job') == [
        "elasticjob_jobs{stat}",
        "elasticjob_job",
        "kind",
        "zone",
    ]
    assert wrong_in("rate(elasticjob_pass_seconds[5m])") == ["elasticjob_pass_seconds"]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    pages = {name: runbook(alert) for name, alert in ALERTS.items()}
    assert sorted(pages.values()) == sorted(RUNBOOKS.iterdir())
    assert len(set(pages.values())) == len(pages)
    for name, page in pages.items():
        text = page.read_text()
        assert text.startswith(f"# {name}\n")
        assert "**What it costs.**" in text
        assert re.findall(r"^## .*$", text, re.MULTILINE) == HEADINGS, page


def test_the_unit_tests_have_each_alert_fire_and_be_silent() -> None:
    """promtool runs them: ``make test-monitoring``."""
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            seen[bool(case.get("exp_alerts"))].add(case["alertname"])
        for series in test["input_series"]:
            assert wrong_in(series["series"].replace("POD, ", "").replace("OTHER, ", "")) == []
    assert seen == {True: set(ALERTS), False: set(ALERTS)}


def test_the_page_of_alerts_has_them_all() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \|.*\]\((runbooks/[\w-]+\.md)\) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert rows == [
        (name, alert["labels"]["severity"], str(runbook(alert).relative_to(PAGE.parent)))
        for name, alert in ALERTS.items()
    ]


def test_who_was_woken_by_no_alert_finds_every_runbook() -> None:
    linked = re.findall(r"\((runbooks/[\w-]+\.md)\)", PAGE.with_name("troubleshooting.md").read_text())
    assert set(linked) == {str(page.relative_to(PAGE.parent)) for page in RUNBOOKS.iterdir()}


@pytest.mark.parametrize(
    "page", [PAGE, PAGE.with_name("metrics.md"), *sorted(RUNBOOKS.iterdir())], ids=lambda page: page.name
)
def test_queries_in_documents_ask_for_what_the_operator_has(page: Path) -> None:
    histograms = {metric.name for metric in ALL if metric.kind is Kind.HISTOGRAM}
    for expression in re.findall(r"`([^`]*elasticjob_[^`]*)`", page.read_text()):
        assert expression in histograms or wrong_in(expression) == [], expression
