"""What the dashboard shows of a Prometheus: its queries, asked as Grafana asks them.

Grafana cannot be run here. It fills variables into a query, and `$__rate_interval` and `$__range` by rules
that are documented; the answer is Prometheus's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from charts.generate import DASHBOARD
from tests.monitoring.prometheus import SCRAPE_SECONDS, Prometheus

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_VALUES = re.compile(r"label_values\((.*), (\w+)\)")


@dataclass(frozen=True)
class Series:
    """One line of a panel, or one of its values. ``points`` are seconds since the epoch and numbers."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Window:
    """The time that is shown, in seconds since the epoch, and how many points a panel has room for."""

    start: float
    end: float
    points: int = 400

    def step(self, panel: Mapping[str, Any]) -> int:
        """Seconds between two points of this panel."""
        least = {"1m": 60, "30s": 30}.get(panel.get("interval", ""), SCRAPE_SECONDS)
        return max(least, math.ceil((self.end - self.start) / self.points))


def dashboard() -> dict[str, Any]:
    """The chart's file."""
    made: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return made


def panels() -> list[dict[str, Any]]:
    """Its panels, in their order, without the headings of rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def filled(text: str, values: Mapping[str, str]) -> str:
    """A query with variables filled in. Raises KeyError for one that has no value."""
    return _VARIABLE.sub(lambda found: values[found[1]], text)


def choices(prometheus: Prometheus, chosen: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """What people can choose from in each variable with values of a label, given the ``chosen`` ones."""
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            query = _VALUES.fullmatch(filled(variable["query"]["query"], chosen))
            assert query is not None, variable
            found = prometheus.label_values(query[1], query[2])
            regex = variable["regex"].strip("/")
            if regex:
                found = sorted({match[1] for value in found if (match := re.search(regex, value))})
            yield variable["name"], found


def expression(
    panel: Mapping[str, Any], target: Mapping[str, Any], chosen: Mapping[str, str], window: Window
) -> str:
    """What Prometheus is asked for."""
    step = window.step(panel)
    times = {
        "__rate_interval": f"{max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)}s",
        "__range": f"{math.ceil(window.end - window.start)}s",
    }
    return filled(target["expr"], {**chosen, **times})


def asked(
    prometheus: Prometheus,
    panel: Mapping[str, Any],
    target: Mapping[str, Any],
    chosen: Mapping[str, str],
    window: Window,
    over_time: bool = False,
) -> list[Series]:
    """What a query gives; with ``over_time`` also one that is asked for a single time is asked for all."""
    text = expression(panel, target, chosen, window)
    if target["instant"] and not over_time:
        found = [{**one, "values": [one["value"]]} for one in prometheus.query(text)]
    else:
        step = window.step(panel)
        found = prometheus.query_range(text, window.start // step * step, window.end, step)
    made = []
    for one in found:
        points = ((float(at), float(value)) for at, value in one["values"])
        numbers = tuple((at, value) for at, value in points if math.isfinite(value))
        if numbers:
            made.append(Series(_name(target, panel, one["metric"]), one["metric"], numbers))
    return made


def _name(target: Mapping[str, Any], panel: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    if target["legendFormat"] == "__auto":
        return str(panel["title"])
    return _LABEL.sub(lambda found: labels.get(found[1], ""), target["legendFormat"])
