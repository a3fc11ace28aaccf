"""The picture of ``report``: the same rounds, pods, steps and lost time as on its page, as a PNG."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from elasticjob_client.cli.page import BEFORE_THE_FIRST_STEP, PALE, colours, facts
from elasticjob_client.errors import ClientError
from elasticjob_client.explain.report import Report
from elasticjob_client.explain.times import duration, milliseconds, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _ROW, _STEPS, _LINE, _HEAD = 11.0, 0.3, 1.7, 0.24, 1.0
"""Inches."""
_LETTERS_PER_WIDTH = 150
"""How many of a label's letters fit into the whole width of the bars."""


def write(found: Report, target: Path) -> None:
    """Draw it into this file. Raises ClientError without matplotlib, OSError if it cannot be written."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ClientError(
            "a picture needs matplotlib, which is not installed: pip install './client[png]' in a clone. "
            "`elasticjob report JOB -f report.html` needs nothing, and a browser prints it"
        ) from error
    with rc_context({"text.parse_math": False}):  # a job's texts may have dollars
        _drawn(found, Figure).savefig(target, format="png", dpi=120)


def _drawn(found: Report, make: type[Figure]) -> Figure:
    rows = list(dict.fromkeys(bar.row for bar in found.bars))
    with_steps = len(found.progress) > 1
    heights = [_ROW * len(rows) + 0.2, *([_STEPS] if with_steps else []), _LINE * (len(found.lost) + 1)]
    figure = make(figsize=(_WIDTH, sum(heights) + _HEAD + 0.35 * len(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    job = found.status
    state = shorten(f"{job.state}: {job.message}" if job.message else job.state, _LETTERS_PER_WIDTH)
    figure.suptitle(f"{job.namespace}/{job.name}\n{state}\n{facts(found)}", x=0.01, ha="left", fontsize=10)
    _bars(axes[0], found, rows)
    if with_steps:
        _steps(axes[1], found)
    _lost(axes[-1], found)
    return figure


def _seconds(found: Report, time: Any) -> float:
    return float((time - found.begin).total_seconds())


def _axis(axes: Axes, found: Report) -> None:
    whole = max(_seconds(found, found.end), 1.0)
    shown = ticks(whole)
    axes.set_xlim(0, whole)
    axes.set_xticks(shown, [duration(tick) for tick in shown])
    axes.tick_params(labelsize=8, length=0)
    axes.grid(axis="x", color="#ddd")
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _bars(axes: Axes, found: Report, rows: list[str]) -> None:
    whole = max(_seconds(found, found.end), 1.0)
    shown = colours(found.bars)
    for bar in found.bars:
        left = _seconds(found, bar.begin)
        wide = max(_seconds(found, bar.end) - left, whole / 500)
        row = rows.index(bar.row)
        axes.barh(row, wide, left=left, height=0.8, color=shown[bar.kind], edgecolor="white")
        if bar.waits_until:
            pale = _seconds(found, bar.waits_until) - left
            axes.barh(row, pale, left=left, height=0.8, color="white", alpha=PALE)
        if len(bar.label) < wide / whole * _LETTERS_PER_WIDTH:
            axes.text(left + whole / 250, row, bar.label, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    _axis(axes, found)
    kinds = dict.fromkeys(bar.kind for bar in found.bars)
    for kind in kinds:
        axes.barh(0, 0, color=shown[kind], label=kind)
    axes.barh(0, 0, color="white", label=f"({BEFORE_THE_FIRST_STEP})")
    axes.legend(
        ncols=len(kinds) + 1, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8, borderpad=0
    )


def _steps(axes: Axes, found: Report) -> None:
    axes.plot(
        [_seconds(found, time) for time, _ in found.progress],
        [step for _, step in found.progress],
        color="#4477aa",
    )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("step", fontsize=8)
    _axis(axes, found)


def _lost(axes: Axes, found: Report) -> None:
    """Lines of text that say where the time went, and losses by node."""
    axes.axis("off")
    whole = max(found.active_seconds * 1000, 1)
    lines = [
        f"{one.cause}: {milliseconds(one.milliseconds)} without progress, {one.milliseconds / whole:.1%}"
        for one in found.lost
    ]
    if found.nodes:
        lines.append("losses by node: " + ", ".join(f"{name} {count}" for name, count in found.nodes))
    axes.text(0, 1, "\n".join(lines), va="top", fontsize=8, transform=axes.transAxes)
