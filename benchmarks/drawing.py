"""What all pictures of the results are drawn with."""

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
    path: Path, panels: Sequence[Sequence[str]], size: tuple[float, float], dpi: int = 130, **ratios: Any
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A figure and its panels by name, written as PNG at the end; ``size`` is in inches."""
    figure, axes = pyplot.subplot_mosaic([list(row) for row in panels], figsize=size, **ratios)
    yield figure, axes
    figure.savefig(path, dpi=dpi)
    pyplot.close(figure)
