"""The figures as one picture: seconds over N on log axes, and where c10d ends instead of slowing down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.picture import C10D, K8S, mosaic, over_pods
from benchmarks.plan import JOIN, KILL_TO_FIRST_STEP, REJOIN, REPLACE, SHRINK, WORKER_START
from benchmarks.results import JOB_DIED, STANDBY, STORE_SHARING_OFF, TIMEOUT, Key, Results

_PANELS = {
    JOIN: "First rendezvous",
    REJOIN: "Next rendezvous",
    REPLACE: "A pod is killed, and a replacement already runs",
    SHRINK: "A pod is killed, and the others go on without it",
}
_FIRST_STEP = "One of two pods is killed: until the next training step"
_NAMES = {
    ("k8s", ""): "ElasticJob",
    ("k8s", STANDBY): "ElasticJob, with a spare",
    ("c10d", ""): "c10d, default settings",
    ("c10d", STORE_SHARING_OFF): "c10d, store sharing off",
}
_LOOKS: dict[tuple[str, str], dict[str, Any]] = {
    ("k8s", ""): {"color": K8S, "linewidth": 2},
    ("k8s", STANDBY): {"color": "#9db9f0", "linewidth": 5},
    ("c10d", ""): {"color": "#eab0a6", "linewidth": 6},
    ("c10d", STORE_SHARING_OFF): {"color": C10D, "linewidth": 1.5, "linestyle": "--"},
}
"""Where two lines are the same, the wide and pale one is seen below the other."""
_ENDS = {JOB_DIED: "the job fails", TIMEOUT: "no rendezvous in time"}
_BELOW = [("k8s", STANDBY), ("c10d", "")]
_HEADROOM = 3.0
"""How far above the slowest figure the axis goes: there the failures are."""
_END_HEIGHTS = (0.97, 0.91)
"""Where a failure is written, as a fraction of the axis: one line per variant of c10d."""


def plot(results: Results, path: Path) -> None:
    """Write the picture as PNG: a panel for each measurement that there is, and none that is empty."""
    sized = [what for what in _PANELS if results.sizes(what)]
    steps = bool(results.sizes(KILL_TO_FIRST_STEP) or results.sizes(WORKER_START))
    if not sized and not steps:
        return
    columns = min(max(len(sized), 1), 2)
    rows = [sized[first : first + columns] for first in range(0, len(sized), columns)]
    if rows and len(rows[-1]) < columns:
        rows[-1] = rows[-1] * columns
    if steps:
        rows.append([_FIRST_STEP] * columns)
    heights = [1.0] * (len(rows) - steps) + [0.55] * steps
    size = (6.4 * columns, 4.3 * sum(heights) + 0.5)
    with mosaic(path, rows, size, heights) as (figure, panels):
        for what in sized:
            _by_size(panels[what], results, what)
        if steps:
            _first_steps(panels[_FIRST_STEP], results)
        figure.suptitle("Seconds, less is better. Lines: medians. Bands: the fastest to the slowest run.")
        figure.tight_layout()


def _by_size(axes: Any, results: Results, what: str) -> None:
    """Median as a line, minimum to maximum as a band, failures as crosses along the top."""
    failures = 0
    for backend, variant in sorted(results.backends(what), key=lambda pair: pair not in _BELOW):
        sizes, medians, lows, highs = [], [], [], []
        ended: dict[str, list[int]] = {}
        for n in results.sizes(what):
            summary = results.summary(Key(what, backend, variant, n))
            if summary is None:
                continue
            if summary.ended:
                ended.setdefault(summary.ended, []).append(n)
            elif summary.median is not None:
                sizes.append(n)
                medians.append(summary.median)
                lows.append(summary.low)
                highs.append(summary.high)
        looks = _LOOKS.get((backend, variant), {})
        label = _name(backend, variant)
        if sizes:
            axes.plot(sizes, medians, marker="o", markersize=4, label=label, **looks)
            axes.fill_between(sizes, lows, highs, color=looks.get("color"), alpha=0.2, linewidth=0)
        for outcome, where in ended.items():
            height = _END_HEIGHTS[failures % len(_END_HEIGHTS)]
            failures += 1
            axes.plot(
                where,
                [height] * len(where),
                marker="x",
                linestyle="none",
                color=C10D if backend == "c10d" else looks.get("color"),
                transform=axes.get_xaxis_transform(),
                label=f"{label}: {_ENDS.get(outcome, outcome)}",
            )
    over_pods(axes, _PANELS[what], "seconds", results.sizes(what))
    axes.set_ylim(top=axes.get_ylim()[1] * _HEADROOM)


def _first_steps(axes: Any, results: Results) -> None:
    """Bars: there is one N. A failure is a bar without length and a word."""
    entries = [
        (_name(*pair), results.summary(Key(KILL_TO_FIRST_STEP, *pair, 2)), _LOOKS.get(pair, {}).get("color"))
        for pair in results.backends(KILL_TO_FIRST_STEP)
    ]
    entries += [
        ("for comparison: torchrun's own start", results.summary(Key(WORKER_START, "c10d", "", n)), "0.75")
        for n in results.sizes(WORKER_START)[-1:]
    ]
    for position, (_, summary, colour) in enumerate(entries):
        if summary is None:
            continue
        if summary.median is None or summary.low is None or summary.high is None:
            axes.text(0.1, position, _ENDS.get(summary.ended, summary.ended), va="center", color=C10D)
            continue
        axes.barh(position, summary.median, color=colour, height=0.6)
        axes.text(summary.median + 0.1, position, f"{summary.median:.1f} s", va="center")
    axes.set_yticks(range(len(entries)), [name for name, _, _ in entries])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(title=_FIRST_STEP, xlabel="seconds")
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _name(backend: str, variant: str) -> str:
    return _NAMES.get((backend, variant), f"{backend}, {variant}" if variant else backend)
