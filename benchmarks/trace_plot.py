"""A re-join as lanes over time: what each side did when, in the run in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.picture import K8S, picture
from benchmarks.trace import EVENT, LEASE, STATUS, Trace, Traces

_OPERATOR = {
    "plan": ("decides", "#12408f"),
    STATUS: ("writes the job's status", K8S),
    LEASE: ("publishes the round", "#84b0ff"),
    EVENT: ("writes Events", "#c9c9c9"),
}
_PODS = (
    ("announce themselves", "announcing", "announced", "#e3c877"),
    ("wait for the round", "announced", "woken", "#dddddd"),
    ("connect to rank 0", "woken", "connected", "#b9a9d6"),
    ("wait for each other", "connected", "barrier passed", "#d9a7a0"),
    ("return to torchrun", "barrier passed", "returned", "#9cc39c"),
)


def plot(traces: Traces, path: Path) -> None:
    """Write the picture as PNG: a panel for each N."""
    sizes = traces.sizes()
    if not sizes:
        return
    with picture(path, len(sizes), 1, (11, 0.6 + 2.3 * len(sizes)), dpi=120) as (figure, grid):
        for (axes,), n in zip(grid, sizes, strict=True):
            runs = traces.of(n)
            _lanes(axes, runs[len(runs) // 2])
        figure.tight_layout()


def _lanes(axes: Any, trace: Trace) -> None:
    names = []
    for lane, (name, start, end, colour) in enumerate(_PODS):
        names.append(f"pods {name}")
        begins, ends = trace.reached[start], trace.reached[end]
        if begins and ends:
            begin = 1000 * min(begins)
            axes.barh(lane, 1000 * max(ends) - begin, left=begin, color=colour, height=0.7)
    for what, (does, colour) in _OPERATOR.items():
        names.append(f"operator {does}")
        for span in trace.spans:
            if span.what == what:
                left = 1000 * span.began
                axes.barh(
                    len(names) - 1, 1000 * (span.ended - span.began), left=left, color=colour, height=0.7
                )
    axes.axvline(1000 * trace.total, color="black", linewidth=1)
    axes.set_xlim(right=1000 * trace.total * 1.03)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(
        title=f"Next rendezvous of {trace.n} pods: {1000 * trace.total:.0f} ms",
        xlabel="milliseconds since the last pod has called",
    )
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
