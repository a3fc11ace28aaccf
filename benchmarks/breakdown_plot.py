"""The breakdown as stacked bars: all phases in seconds, and what is ours once more in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.patches import Rectangle

from benchmarks.breakdown import (
    IMPORT,
    NOTICE,
    OURS,
    PHASES,
    RANKS,
    RENDEZVOUS,
    REPLACEMENT,
    REPORT,
    START,
    STEP,
    STOP,
    TOLD,
    Bar,
    Breakdown,
)
from benchmarks.breakdown_table import title
from benchmarks.picture import K8S, picture

_COLOURS = {
    REPORT: "#c9c9c9",
    NOTICE: "#12408f",
    TOLD: "#a8a8a8",
    STOP: "#8a8a8a",
    REPLACEMENT: "#e3c877",
    RENDEZVOUS: K8S,
    RANKS: "#84b0ff",
    START: "#b9a9d6",
    IMPORT: "#d9a7a0",
    STEP: "#9cc39c",
}
_WORTH_A_NUMBER = 0.045
"""A piece that is shorter than this part of the axis has no room for its figure."""


def plot(breakdown: Breakdown, path: Path) -> None:
    """Write the picture as PNG: a row for each N."""
    sizes = breakdown.sizes()
    if not sizes:
        return
    size = (15.5, 1.3 + 3.0 * len(sizes))
    with picture(path, len(sizes), 2, size, dpi=120, widths=(2.4, 1)) as (figure, grid):
        for (whole, ours), n in zip(grid, sizes, strict=True):
            bars = [bar for bar in breakdown.bars if bar.n == n]
            _stack(whole, bars, list(PHASES), 1.0)
            whole.set(title=f"{title(breakdown, n)}: from kill -9 to the first step", xlabel="seconds")
            _stack(ours, [bar for bar in bars if bar.backend == "k8s"], list(OURS), 1000.0)
            ours.set(title="of that, what ElasticJob's code takes", xlabel="milliseconds")
        handles = [Rectangle((0, 0), 1, 1, color=_COLOURS[phase]) for phase in PHASES]
        labels = [f"{phase} (ElasticJob or c10d)" if phase in OURS else phase for phase in PHASES]
        figure.legend(handles, labels, loc="lower center", ncol=5, fontsize=9, frameon=False)
        figure.tight_layout(rect=(0, 0.9 / figure.get_figheight(), 1, 1))


def _stack(axes: Any, bars: list[Bar], phases: list[str], scale: float) -> None:
    """Medians side by side; the whole's median beyond the end, or how it ended."""
    lengths = [sum(bar.medians().get(phase, 0.0) for phase in phases) * scale for bar in bars]
    longest = max(lengths, default=0.0) or 1.0
    for position, bar in enumerate(bars):
        left, medians = 0.0, bar.medians()
        for phase in phases if medians else ():
            length = medians[phase] * scale
            axes.barh(position, length, left=left, color=_COLOURS[phase], height=0.62)
            if length > longest * _WORTH_A_NUMBER:
                light = phase in (NOTICE, RENDEZVOUS)
                axes.text(
                    left + length / 2,
                    position,
                    _figure(length),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if light else "black",
                )
            left += length
        text = _figure(left) if medians else bar.total().ended
        axes.text(left + longest * 0.01, position, text, va="center", fontsize=9, fontweight="bold")
    axes.set_yticks(range(len(bars)), [bar.name.replace("k8s", "ElasticJob") for bar in bars])
    axes.set_xlim(0, longest * 1.12)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
