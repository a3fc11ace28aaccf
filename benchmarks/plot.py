"""The figures as one picture: seconds over N on log axes, and where c10d ends instead of slowing down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.picture import C10D, K8S, over_participants, picture
from benchmarks.plan import JOIN, KILL_TO_FIRST_STEP, REJOIN, REPLACE, SHRINK, WORKER_START
from benchmarks.results import STANDBY, STORE_SHARING_OFF, Key, Results
from benchmarks.table import column_name

_PANELS = {
    JOIN: "First join",
    REJOIN: "Re-join",
    REPLACE: "Kill -9, replacement ready",
    SHRINK: "Kill -9, no replacement (shrink)",
}
_COLOURS = {
    ("k8s", ""): K8S,
    ("k8s", STANDBY): "#7fb0ff",
    ("c10d", ""): C10D,
    ("c10d", STORE_SHARING_OFF): "#e8913c",
}
_HEADROOM = 3.0
"""How far above the slowest figure the axis goes: there the failures are."""
_END_HEIGHTS = (0.97, 0.91)
"""Where a failure is written, as a fraction of the axis: one line per variant of c10d."""


def plot(results: Results, path: Path) -> None:
    """Write the picture as PNG: a panel for each measurement that there is."""
    sized = [what for what in _PANELS if results.sizes(what)]
    steps = bool(results.sizes(KILL_TO_FIRST_STEP) or results.sizes(WORKER_START))
    count = len(sized) + steps
    if count == 0:
        return
    columns = min(count, 3)
    rows = -(-count // columns)
    with picture(path, rows, columns, (5.2 * columns, 4.2 * rows)) as (figure, grid):
        panels = list(grid.flat)
        for what in sized:
            _by_size(panels.pop(0), results, what)
        if steps:
            _first_steps(panels.pop(0), results)
        for unused in panels:
            unused.set_visible(False)
        figure.tight_layout()


def _by_size(axes: Any, results: Results, what: str) -> None:
    """Median as a line, minimum to maximum as a band, failures as crosses along the top."""
    failures = 0
    for backend, variant in results.backends(what):
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
        colour = _COLOURS.get((backend, variant))
        label = column_name(backend, variant)
        if sizes:
            style = "--" if variant else "-"
            axes.plot(sizes, medians, style, marker="o", markersize=4, color=colour, label=label)
            axes.fill_between(sizes, lows, highs, color=colour, alpha=0.2, linewidth=0)
        for outcome, where in ended.items():
            height = _END_HEIGHTS[failures % len(_END_HEIGHTS)]
            failures += 1
            axes.plot(
                where,
                [height] * len(where),
                marker="x",
                linestyle="none",
                color=colour,
                transform=axes.get_xaxis_transform(),
                label=f"{label}: {outcome}",
            )
    over_participants(axes, _PANELS[what], "seconds", results.sizes(what))
    axes.set_ylim(top=axes.get_ylim()[1] * _HEADROOM)


def _first_steps(axes: Any, results: Results) -> None:
    """Bars: there is one N. A failure is a bar without length and a word."""
    entries = [
        (column_name(*pair), results.summary(Key(KILL_TO_FIRST_STEP, *pair, 2)), _COLOURS.get(pair))
        for pair in results.backends(KILL_TO_FIRST_STEP)
    ]
    entries += [
        (
            f"bare start, {n} worker{'s' if n > 1 else ''}",
            results.summary(Key(WORKER_START, "c10d", "", n)),
            "0.6",
        )
        for n in results.sizes(WORKER_START)
    ]
    for position, (_, summary, colour) in enumerate(entries):
        if summary is None:
            continue
        if summary.median is None or summary.low is None or summary.high is None:
            axes.text(0.1, position, summary.ended, va="center", color=colour)
            continue
        spread = [[summary.median - summary.low], [summary.high - summary.median]]
        axes.barh(position, summary.median, xerr=spread, color=colour, height=0.6, capsize=3)
    axes.set_yticks(range(len(entries)), [name for name, _, _ in entries])
    axes.invert_yaxis()
    axes.set(title="Kill -9 to first step, two torchruns", xlabel="seconds", xlim=(0, None))
    axes.grid(alpha=0.3, axis="x")
