"""The figures of `benchmarks.scale` as two pictures: how long a rendezvous takes, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measures import JOIN_TIMEOUT_SECONDS
from benchmarks.picture import C10D, K8S, over_pods, picture
from benchmarks.plan import JOIN, REJOIN
from benchmarks.results import TIMEOUT
from benchmarks.scale_results import Samples

_COLOURS = {"k8s": K8S, "c10d": C10D, "etcd-v2": "#2e8b57", "etcd": "#8a6d3b"}
_NAMES = {"k8s": "ElasticJob", "c10d": "c10d", "etcd-v2": "etcd-v2", "etcd": "etcd"}
_WHATS = {JOIN: ("first rendezvous", "--"), REJOIN: ("next rendezvous", "-")}
_COSTS = (
    ("Traffic of the API server", "bytes", {"bytes_sent": "from the pods", "bytes_received": "to the pods"}),
    (
        "Requests to the API server",
        "requests",
        {"requests": "of the pods", "operator_requests": "of the operator"},
    ),
    (
        "CPU time",
        "seconds",
        {"operator_cpu_seconds": "of the operator", "apiserver_cpu_seconds": "of the API server"},
    ),
    ("The operator's memory afterwards", "MB", {"operator_megabytes": "resident"}),
)
_COST_COLOURS = (K8S, "#e8913c")


def plot(samples: Samples, path: Path) -> None:
    """Write two pictures as PNG: how long it takes, at ``path``, and what one round costs, beside it."""
    with picture(path, 1, 2, (12.8, 4.8)) as (figure, grid):
        for axes, (what, (name, _)) in zip(grid.flat, _WHATS.items(), strict=True):
            _times(axes, samples, what, f"{name.capitalize()}: from the last pod's call to the last return")
        figure.tight_layout()
    with picture(path.with_stem(f"{path.stem}-cost"), 2, 2, (12.8, 9.0)) as (figure, grid):
        for axes, (title, unit, figures) in zip(grid.flat, _COSTS, strict=True):
            _costs(axes, samples, title, unit, figures)
        figure.suptitle("What one rendezvous of an ElasticJob costs")
        figure.tight_layout()


def _times(axes: Any, samples: Samples, what: str, title: str) -> None:
    ended: dict[tuple[int, str], list[str]] = {}
    for backend in samples.backends():
        colour = _COLOURS.get(backend)
        points = samples.curve(what, backend)
        if points:
            _curve(axes, points, _NAMES.get(backend, backend), colour, "-")
        for n, outcome in samples.ends(what, backend):
            top = axes.get_xaxis_transform()
            axes.plot([n], [0.95], marker="x", markersize=9, color=colour, linestyle="none", transform=top)
            axes.axvline(n, color=colour, linestyle=":", linewidth=1)
            ended.setdefault((n, outcome), []).append(backend)
    for (n, outcome), backends in ended.items():
        words = f"{', '.join(_NAMES.get(one, one) for one in backends)}:\n{_ends(outcome)} at {n}"
        axes.text(n * 1.08, 0.9, words, fontsize=8, va="top", transform=axes.get_xaxis_transform())
    over_pods(axes, title, "seconds", samples.sizes(what))


def _ends(outcome: str) -> str:
    return f"none within {JOIN_TIMEOUT_SECONDS:.0f} s" if outcome == TIMEOUT else outcome


def _costs(axes: Any, samples: Samples, title: str, unit: str, figures: Mapping[str, str]) -> None:
    for (figure, words), colour in zip(figures.items(), _COST_COLOURS, strict=False):
        for what, (name, style) in _WHATS.items():
            points = [(n, value) for n, value in samples.curve(what, "k8s", figure) if value > 0]
            if points:
                _curve(axes, points, f"{name}, {words}", colour, style)
    over_pods(axes, title, unit, sorted({n for what in _WHATS for n in samples.sizes(what, "k8s")}))
    if unit == "MB":  # most of it is there before the first job
        axes.set(yscale="linear", ylim=(0, None))


def _curve(axes: Any, points: list[tuple[int, float]], label: str, colour: str | None, style: str) -> None:
    sizes, medians = zip(*points, strict=True)
    axes.plot(sizes, medians, style, marker="o", markersize=4, color=colour, label=label)
