"""The figures of `benchmarks.scale` as one picture: log-log, with the growth of each curve in its legend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.picture import C10D, K8S, over_participants, picture
from benchmarks.plan import JOIN, REJOIN
from benchmarks.scale_results import FIT_FROM, Samples, fit
from benchmarks.scale_table import TARGETS

_COLOURS = {"k8s": K8S, "c10d": C10D, "etcd-v2": "#2e8b57", "etcd": "#8a6d3b"}
_WHATS = {JOIN: ("first join", "--"), REJOIN: ("re-join", "-")}
_COSTS = (
    ("Bytes at the API server, one round", "bytes", ("bytes_sent", "bytes_received")),
    ("API requests, one round", "requests", ("requests", "operator_requests")),
    ("CPU time, one round", "seconds", ("operator_cpu_seconds", "apiserver_cpu_seconds")),
    ("Operator's memory after a round", "MB", ("operator_megabytes",)),
)
_COST_COLOURS = (K8S, "#e8913c")


def plot(samples: Samples, path: Path) -> None:
    """Write the picture as PNG."""
    with picture(path, 2, 3, (16.5, 9.0)) as (figure, grid):
        panels = list(grid.flat)
        for what, (name, _) in _WHATS.items():
            _times(panels.pop(0), samples, what, f"{name.capitalize()}: last call to last return")
        for title, unit, figures in _COSTS:
            _costs(panels.pop(0), samples, title, unit, figures)
        figure.tight_layout()


def _times(axes: Any, samples: Samples, what: str, title: str) -> None:
    ended: dict[tuple[int, str], list[str]] = {}
    for backend in samples.backends():
        colour = _COLOURS.get(backend)
        points = samples.curve(what, backend)
        if points:
            _curve(axes, points, backend, colour, "-")
        for n, outcome in samples.ends(what, backend):
            top = axes.get_xaxis_transform()
            axes.plot([n], [0.95], marker="x", markersize=9, color=colour, linestyle="none", transform=top)
            axes.axvline(n, color=colour, linestyle=":", linewidth=1)
            ended.setdefault((n, outcome), []).append(backend)
    for (n, outcome), backends in ended.items():
        words = f"{', '.join(backends)}:\n{outcome} at {n}"
        axes.text(n * 1.08, 0.9, words, fontsize=8, va="top", transform=axes.get_xaxis_transform())
    aims = [(n, aim) for n, aim in TARGETS[what].items() if n in samples.sizes(what)]
    if aims:
        xs, ys = zip(*aims, strict=True)
        axes.plot(xs, ys, marker="_", markersize=14, linestyle="none", color="0.3", label="target")
    over_participants(axes, title, "seconds", samples.sizes(what))


def _costs(axes: Any, samples: Samples, title: str, unit: str, figures: tuple[str, ...]) -> None:
    for figure, colour in zip(figures, _COST_COLOURS, strict=False):
        for what, (name, style) in _WHATS.items():
            points = [(n, value) for n, value in samples.curve(what, "k8s", figure) if value > 0]
            if points:
                words = figure.removesuffix("_seconds").replace("_", " ")
                _curve(axes, points, f"{name}, {words}", colour, style)
    over_participants(axes, title, unit, sorted({n for what in _WHATS for n in samples.sizes(what, "k8s")}))
    if unit == "MB":  # most of it is there before the first job
        axes.set(yscale="linear", ylim=(0, None))


def _curve(axes: Any, points: list[tuple[int, float]], label: str, colour: str | None, style: str) -> None:
    """A line; growth is told where the values do grow, and not for the constant part of a memory."""
    found = fit(points)
    if found is not None and not label.endswith("megabytes"):
        label = f"{label}: N^{found.exponent:.2f} from N = {FIT_FROM}"
    sizes, medians = zip(*points, strict=True)
    axes.plot(sizes, medians, style, marker="o", markersize=4, color=colour, label=label)
