"""Panels of a Grafana dashboard, and how they are written as its JSON.

A dashboard is a list of rows, a row a list of lines, a line a list of panels of one height, whose widths
make up the 24 columns of the grid. So no panel lies upon another, and nothing has to be counted by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

COLUMNS = 24
SCHEMA_VERSION = 39
"""The version of Grafana 10.3's format. A later Grafana converts it when it reads it."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"

Kind = Literal["stat", "timeseries", "bargauge", "state-timeline", "table"]


@dataclass(frozen=True)
class Query:
    """PromQL, and the name of each series, in which Grafana fills in ``{{label}}``."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel.

    ``steps`` are colours from a value on, the first from any value. ``bars`` draws a count over time as
    stacked bars of a minute or more, ``area`` stacks lines. ``columns`` of a table are titles by label, in
    their order; ``Value`` is the value. ``names`` are texts and colours in place of values, ``colours`` are
    those of series by their names. ``runbooks`` are titles and addresses of links.
    """

    kind: Kind
    title: str
    description: str
    queries: tuple[Query, ...]
    width: int
    height: int = 7
    unit: str = "none"
    decimals: int | None = None
    least: float | None = 0
    most: float | None = None
    steps: tuple[tuple[str, float | None], ...] = ((GREEN, None),)
    limit: bool = False
    bars: bool = False
    area: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    colours: Mapping[str, str] = field(default_factory=dict)
    if_none: str = ""
    text: Literal["value", "name"] = "value"
    runbooks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    lines: tuple[tuple[Panel, ...], ...]


def dashboard(
    *, uid: str, title: str, description: str, rows: Sequence[Row], variables: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """All of it, as Grafana imports it. Raises ValueError for a line that does not fill the grid."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["elasticjob"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "",
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": list(variables)},
        "panels": list(_placed(rows)),
    }


def text(made: Mapping[str, Any]) -> str:
    """The dashboard as the text of a file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def source() -> dict[str, Any]:
    """The variable by which people choose the Prometheus."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def labels(name: str, label: str, query: str, regex: str = "") -> dict[str, Any]:
    """A variable with the values that a label has; of each, what ``regex`` has in brackets."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "regex": regex,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
        "current": {},
    }


def textbox(name: str, label: str, value: str) -> dict[str, Any]:
    """A variable into which people write."""
    chosen = {"text": value, "value": value}
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": value,
        "hide": 0,
        "options": [{**chosen, "selected": True}],
        "current": chosen,
    }


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        at = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": at,
            "panels": [],
        }
        y += 1
        for line in row.lines:
            (height,) = {panel.height for panel in line}
            x = 0
            for panel in line:
                number += 1
                at = {"h": height, "w": panel.width, "x": x, "y": y}
                yield {"id": number, "gridPos": at, **_panel(panel)}
                x += panel.width
            if x != COLUMNS:
                raise ValueError(f"{[panel.title for panel in line]} are {x} columns wide, not {COLUMNS}")
            y += height


def _panel(panel: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        "targets": [_target(panel, number, query) for number, query in enumerate(panel.queries)],
    }
    if any("$__rate_interval" in query.expr for query in panel.queries):
        made["interval"] = "1m" if panel.bars else "30s"
    if panel.kind == "table":
        made["transformations"] = [_organized(panel)]
    if panel.runbooks:
        made["links"] = [{"title": title, "url": url, "targetBlank": True} for title, url in panel.runbooks]
    return made


def _is_asked_once(panel: Panel) -> bool:
    """Whether a panel asks once, for now or for the whole time shown, and not for each point of it."""
    return panel.kind in ("bargauge", "table") or any("$__range" in query.expr for query in panel.queries)


def _target(panel: Panel, number: int, query: Query) -> dict[str, Any]:
    now = _is_asked_once(panel)
    return {
        "refId": chr(ord("A") + number),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": now,
        "range": not now,
        **({"format": "table"} if panel.kind == "table" else {}),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for colour, value in panel.steps]
    by_value = panel.kind != "timeseries"
    made: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if by_value else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": _mappings(panel),
        "custom": _custom(panel),
    }
    for name, value in (("min", panel.least), ("max", panel.most), ("decimals", panel.decimals)):
        if value is not None:
            made[name] = value
    if panel.if_none:
        made["noValue"] = panel.if_none
    return made


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    shown = {
        value: {"text": name, "color": colour, "index": index}
        for index, (value, (name, colour)) in enumerate(panel.names.items())
    }
    return [{"type": "value", "options": shown}] if shown else []


def _custom(panel: Panel) -> dict[str, Any]:
    if panel.kind == "state-timeline":
        return {"fillOpacity": 80, "lineWidth": 0}
    if panel.kind == "table":
        return {"align": "auto", "cellOptions": {"type": "auto"}}
    if panel.kind != "timeseries":
        return {}
    stacked = panel.bars or panel.area
    return {
        "drawStyle": "bars" if panel.bars else "line",
        "lineWidth": 1,
        "fillOpacity": 80 if panel.bars else 40 if panel.area else 5,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if panel.limit else "off"},
    }


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Colours of series; and the value of a table is in the colour of its step."""
    properties = {
        name: {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
        for name, colour in panel.colours.items()
    }
    if "Value" in panel.columns:
        properties[panel.columns["Value"]] = {"id": "custom.cellOptions", "value": {"type": "color-text"}}
    return [
        {"matcher": {"id": "byName", "options": name}, "properties": [one]}
        for name, one in properties.items()
    ]


def _options(panel: Panel) -> dict[str, Any]:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    made: dict[Kind, dict[str, Any]] = {
        "stat": {
            "reduceOptions": reduced,
            "colorMode": "value",
            "graphMode": "none" if panel.text == "name" or _is_asked_once(panel) else "area",
            "textMode": panel.text,
            "justifyMode": "auto",
            "orientation": "auto",
        },
        "timeseries": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
        "bargauge": {
            "reduceOptions": reduced,
            "displayMode": "basic",
            "orientation": "horizontal",
            "showUnfilled": True,
            "valueMode": "color",
        },
        "state-timeline": {
            "legend": {**legend, "showLegend": False},
            "tooltip": {"mode": "single"},
            "mergeValues": True,
            "showValue": "never",
            "rowHeight": 0.8,
        },
        "table": {"showHeader": True, "cellHeight": "sm"},
    }
    return made[panel.kind]


def _organized(panel: Panel) -> dict[str, Any]:
    return {
        "id": "organize",
        "options": {
            "excludeByName": {"Time": True},
            "indexByName": {label: index for index, label in enumerate(panel.columns)},
            "renameByName": dict(panel.columns),
        },
    }
