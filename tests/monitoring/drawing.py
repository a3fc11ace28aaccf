"""The dashboard as a picture: panels in its grid, of what Prometheus answers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from PIL import Image

from charts.grafana import COLUMNS
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.shown import Series, Window, asked, dashboard, filled

WIDTH = 15.0
UNIT = 0.34
"""Inches: of the whole picture, and the height of a line of the grid."""
DPI = 92
_GAP = 0.05
_PAGE, _EDGE, _TEXT, _FAINT = "#f1f3f5", "#d9dde1", "#24292f", "#6e7781"
_LINES = ("#37872d", "#e0a800", "#1f60c4", "#fa6400", "#c4162a", "#8f3bb8", "#0e8a8a", "#a3660b", "#5c6f82")
_COLOURS = {
    "green": "#37872d",
    "yellow": "#e0a800",
    "orange": "#fa6400",
    "red": "#c4162a",
    "blue": "#1f60c4",
    "light-green": "#96d98d",
    "light-blue": "#8ab8ff",
    "super-light-blue": "#c0d8ff",
    "light-orange": "#ffb357",
    "dark-red": "#7a0f1c",
    "purple": "#8f3bb8",
    "gray": "#8e98a3",
}
_NAMES_BELOW = 8


def draw(prometheus: Prometheus, chosen: Mapping[str, str], window: Window, target: Path) -> None:
    """Ask for everything and write a PNG of 256 colours."""
    every = dashboard()["panels"]
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in every)
    figure = pyplot.figure(figsize=(WIDTH, lines * UNIT), facecolor=_PAGE)
    for panel in every:
        place = _Place(figure, panel, lines)
        if panel["type"] == "row":
            place.heading(filled(panel["title"], chosen))
            continue
        found = [one for query in panel["targets"] for one in asked(prometheus, panel, query, chosen, window)]
        place.frame()
        if found:
            _DRAWN[panel["type"]](place, panel, found, window)
        else:
            place.words(panel["fieldConfig"]["defaults"].get("noValue", "No data"))
    figure.savefig(target, dpi=DPI, facecolor=_PAGE)
    pyplot.close(figure)
    with Image.open(target) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


class _Place:
    """Where a panel is, in inches, and what is written there."""

    def __init__(self, figure: Any, panel: Mapping[str, Any], lines: int) -> None:
        at = panel["gridPos"]
        self.figure, self.title, self.total = figure, panel["title"], lines * UNIT
        self.left, self.width = at["x"] * WIDTH / COLUMNS + _GAP, at["w"] * WIDTH / COLUMNS - 2 * _GAP
        self.bottom = (lines - at["y"] - at["h"]) * UNIT + _GAP
        self.height = at["h"] * UNIT - 2 * _GAP

    def axes(self, left: float, bottom: float, right: float, top: float) -> Any:
        """Axes in it, with these margins."""
        box = (
            (self.left + left) / WIDTH,
            (self.bottom + bottom) / self.total,
            (self.width - left - right) / WIDTH,
            (self.height - bottom - top) / self.total,
        )
        made = self.figure.add_axes(box)
        made.spines[["top", "right", "left", "bottom"]].set_visible(False)
        made.tick_params(labelsize=7, colors=_FAINT, length=0, pad=2)
        return made

    def blank(self, top: float = 0.28) -> Any:
        """Axes from 0 to 1 below the title, with nothing in them."""
        made = self.axes(0.08, 0.05, 0.08, top)
        made.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], facecolor="none")
        return made

    def frame(self) -> None:
        """The panel's background and title."""
        box = (self.left / WIDTH, self.bottom / self.total, self.width / WIDTH, self.height / self.total)
        area = self.figure.add_axes(box, xticks=[], yticks=[])
        for spine in area.spines.values():
            spine.set(color=_EDGE, linewidth=0.8)
        self._write(0.09, self.height - 0.2, self.title, size=8.5, weight="bold")

    def heading(self, title: str) -> None:
        """The title of a row."""
        self._write(0.04, 0.07, title, size=11, weight="bold")

    def words(self, text: str) -> None:
        """In place of data."""
        self.blank().text(0.5, 0.5, text, ha="center", va="center", fontsize=8, color=_FAINT)

    def _write(self, x: float, y: float, text: str, **how: Any) -> None:
        at = ((self.left + x) / WIDTH, (self.bottom + y) / self.total)
        self.figure.text(*at, text, color=_TEXT, **how)


def _number(value: float, defaults: Mapping[str, Any], exact: bool = False) -> str:
    unit = defaults["unit"]
    if unit == "percentunit":
        return f"{value:.0%}" if not exact else f"{value:.1%}"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "s":
        if value == 0:
            return "0"
        if value < 1:
            return f"{value * 1000:.3g} ms"
        return f"{value:.3g} s" if value < 60 else f"{value / 60:.3g} min"
    text = f"{value:.0f}" if value == int(value) or defaults.get("decimals") == 0 else f"{value:.3g}"
    return text + {"reqps": " req/s"}.get(unit, unit.removeprefix("suffix:") if ":" in unit else "")


def _own_colours(panel: Mapping[str, Any]) -> dict[str, str]:
    """The colours that series have by their names."""
    return {
        override["matcher"]["options"]: _COLOURS[one["value"]["fixedColor"]]
        for override in panel["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "color"
    }


def _colour(value: float, defaults: Mapping[str, Any]) -> str:
    for mapping in defaults["mappings"]:
        shown = mapping["options"].get(f"{value:g}")
        if shown:
            return _COLOURS[shown["color"]]
    steps = defaults["thresholds"]["steps"]
    return _COLOURS[[s["color"] for s in steps if s["value"] is None or value >= s["value"]][-1]]


def _over_time(axes: Any, window: Window) -> None:
    axes.set_xlim(window.start, window.end)
    room = axes.get_position().width * WIDTH / 0.45
    between = next(n for n in (60, 120, 300, 600, 1800, 3600) if (window.end - window.start) / n <= room)
    first = math.ceil(window.start / between) * between
    ticks = list(range(first, int(window.end) + 1, between))
    axes.set_xticks(ticks, [time.strftime("%H:%M", time.gmtime(tick)) for tick in ticks])


def _grid(one: Series, step: float) -> tuple[list[float], list[float]]:
    """Its points, with a gap where some are missing."""
    times: list[float] = []
    values: list[float] = []
    for at, value in one.points:
        if times and at - times[-1] > 1.5 * step:
            times.append(times[-1] + step / 2)
            values.append(math.nan)
        times.append(at)
        values.append(value)
    return times, values


def _timeseries(place: _Place, panel: Mapping[str, Any], found: Sequence[Series], window: Window) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    custom, step, own = defaults["custom"], window.step(panel), _own_colours(panel)
    longest = max(len(one.name) for one in found[:_NAMES_BELOW])
    columns = max(1, min(4, int(place.width / (0.3 + 0.066 * longest))))
    lines_below = 1 + (len(found[:_NAMES_BELOW]) - 1) // columns
    axes = place.axes(0.62, 0.28 + 0.15 * lines_below, 0.1, 0.3)
    axes.grid(axis="y", color=_EDGE, linewidth=0.6)
    axes.set_axisbelow(True)
    stacked: dict[float, float] = {}
    for number, one in enumerate(found):
        colour, name = own.get(one.name, _LINES[number % len(_LINES)]), one.name
        if number >= _NAMES_BELOW:
            name = f"_{name}"
        if custom["stacking"]["mode"] == "normal":
            times = [at for at, _ in one.points]
            floor = [stacked.get(at, 0.0) for at in times]
            heights = [value for _, value in one.points]
            wide = step * (0.8 if custom["drawStyle"] == "bars" else 1.1)
            axes.bar(times, heights, wide, floor, color=colour, label=name, linewidth=0)
            stacked.update({at: low + high for at, low, high in zip(times, floor, heights, strict=True)})
        else:
            axes.plot(*_grid(one, step), color=colour, label=name, linewidth=1.2)
    low, high = axes.get_ylim()
    high = defaults.get("max", high if stacked or high > 0 else 1)
    limits = [s["value"] for s in defaults["thresholds"]["steps"] if s["value"] is not None]
    if custom["thresholdsStyle"]["mode"] != "off":
        for limit in limits:
            axes.axhline(limit, color=_COLOURS["red"], linewidth=1, linestyle="--")
            high = max(high, limit * 1.1)
    axes.set_ylim(defaults.get("min", low), max(high, 1) if defaults.get("decimals") == 0 else high)
    _over_time(axes, window)
    ticks = matplotlib.ticker.MaxNLocator(4, integer=defaults.get("decimals") == 0)
    axes.yaxis.set_major_locator(ticks)
    axes.yaxis.set_major_formatter(lambda value, _: _number(value, defaults))
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.06, -0.11),
        ncol=columns,
        fontsize=7,
        frameon=False,
        labelcolor=_TEXT,
        handlelength=0.8,
        handletextpad=0.4,
        columnspacing=1.0,
        labelspacing=0.25,
        borderpad=0,
    )


def _stat(place: _Place, panel: Mapping[str, Any], found: Sequence[Series], window: Window) -> None:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    if options["graphMode"] == "area" and len(found) == 1:
        axes = place.axes(0.02, 0.02, 0.02, place.height * 0.62)
        times, values = _grid(found[0], window.step(panel))
        colour = _colour(values[-1], defaults)
        axes.fill_between(times, values, color=colour, alpha=0.15, linewidth=0)
        axes.plot(times, values, color=colour, linewidth=0.8)
        axes.set(xlim=(window.start, window.end), xticks=[], yticks=[], facecolor="none")
        axes.set_ylim(0, max(1e-9, max(v for v in values if v == v)) * 1.15)
    shown = place.blank()
    for number, one in enumerate(found):
        x = (number + 0.5) / len(found)
        value = one.points[-1][1]
        if options["textMode"] == "name":
            shown.text(x, 0.5, one.name, ha="center", va="center", fontsize=9, color=_colour(value, defaults))
            continue
        size = 20 if len(found) == 1 else 15
        shown.text(
            x,
            0.6,
            _number(value, defaults, exact=True),
            ha="center",
            va="center",
            fontsize=size,
            weight="bold",
            color=_colour(value, defaults),
        )
        if len(found) > 1:
            shown.text(x, 0.15, one.name, ha="center", va="center", fontsize=7, color=_FAINT)


def _bargauge(place: _Place, panel: Mapping[str, Any], found: Sequence[Series], _window: Window) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes = place.axes(1.35, 0.15, 0.4, 0.35)
    values = [one.points[-1][1] for one in found]
    rows = range(len(found))
    axes.barh(rows, [max(values)] * len(found), color="#eceff2", height=0.6)
    axes.barh(rows, values, color=[_colour(value, defaults) for value in values], height=0.6)
    axes.set_yticks(list(rows), [one.name for one in found], color=_TEXT, fontsize=8)
    axes.set(xticks=[], xlim=(0, max(values)), ylim=(max(len(found), 4) - 0.5, -0.5))
    for row, value in zip(rows, values, strict=True):
        at = (max(values) * 1.03, row)
        axes.text(
            *at,
            _number(value, defaults),
            va="center",
            fontsize=10,
            weight="bold",
            color=_colour(value, defaults),
        )


def _state_timeline(place: _Place, panel: Mapping[str, Any], found: Sequence[Series], window: Window) -> None:
    defaults, step, own = panel["fieldConfig"]["defaults"], window.step(panel), _own_colours(panel)
    widest = max(len(one.name) for one in found)
    axes = place.axes(0.16 + 0.071 * widest, 0.28, 0.1, 0.35)
    for row, one in enumerate(found):
        for at, value in one.points:
            colour = own.get(one.name, _colour(value, defaults))
            axes.barh(row, step * 1.02, 0.7, at, color=colour, linewidth=0)
    axes.set_yticks(range(len(found)), [one.name for one in found], color=_TEXT, fontsize=7.3)
    axes.set_ylim(max(len(found), 4) - 0.5, -0.5)
    _over_time(axes, window)


def _table(place: _Place, panel: Mapping[str, Any], found: Sequence[Series], _window: Window) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    columns = panel["transformations"][0]["options"]["renameByName"]
    shown = place.blank()
    for number, (label, title) in enumerate(columns.items()):
        x = number / len(columns)
        shown.text(x, 0.95, title, fontsize=7.5, color=_COLOURS["blue"], va="top", weight="bold")
        for row, one in enumerate(found[:9]):
            value = one.points[-1][1]
            text = _number(value, defaults) if label == "Value" else one.labels.get(label, "")
            colour = _colour(value, defaults) if label == "Value" else _TEXT
            shown.text(x, 0.83 - row * 0.095, text, fontsize=7.5, color=colour, va="top")


_DRAWN = {
    "timeseries": _timeseries,
    "stat": _stat,
    "bargauge": _bargauge,
    "state-timeline": _state_timeline,
    "table": _table,
}
