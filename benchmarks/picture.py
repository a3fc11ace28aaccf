"""Figures as pictures: what all plots of the benchmarks have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

K8S = "#326ce5"
C10D = "#b0301c"


@contextlib.contextmanager
def picture(
    path: Path,
    rows: int,
    columns: int,
    size: tuple[float, float],
    *,
    dpi: int = 130,
    widths: Sequence[float] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """A figure and its grid of panels, written as PNG at the end; ``size`` is in inches."""
    figure, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, width_ratios=widths)
    yield figure, grid
    figure.savefig(path, dpi=dpi)
    pyplot.close(figure)


@contextlib.contextmanager
def mosaic(
    path: Path, rows: Sequence[Sequence[str]], size: tuple[float, float], heights: Sequence[float]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The same with panels by name, one of which may be as wide as several."""
    figure, panels = pyplot.subplot_mosaic(
        [list(row) for row in rows], figsize=size, gridspec_kw={"height_ratios": heights}
    )
    yield figure, panels
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def over_pods(axes: Any, title: str, unit: str, sizes: Sequence[int]) -> None:
    """Log axes with a tick at each number of pods that was measured, and the legend."""
    axes.set(xscale="log", yscale="log", title=title, xlabel="pods", ylabel=unit)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
