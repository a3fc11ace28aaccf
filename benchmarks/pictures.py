"""`python -m benchmarks.pictures`: all pictures of the results, from the figures that are there.

`plot.png` has seconds over N on log axes, and where c10d ends instead of slowing down. `scale.png` and
`scale-cost.png` have how long a rendezvous takes and what it costs. `breakdown.png` stacks the phases from a
kill to the next step. `rivals.png` has the steps of one training by several systems.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Rectangle

from benchmarks import breakdown as phases
from benchmarks.breakdown import OURS, PHASES, Bar, Breakdown
from benchmarks.breakdown_table import title
from benchmarks.drawing import C10D, K8S, picture
from benchmarks.measures import JOIN_TIMEOUT_SECONDS
from benchmarks.plan import JOIN, REJOIN, REPLACE, SHRINK
from benchmarks.results import JOB_DIED, STANDBY, STORE_SHARING_OFF, TIMEOUT, Samples
from benchmarks.rivals import report

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: %(default)s")
    draw(parser.parse_args().out)


def draw(out: Path) -> None:
    """Write all of them into a folder, which is made if it is not there."""
    out.mkdir(parents=True, exist_ok=True)
    plot(Samples.read(RESULTS / "results.json"), out / "plot.png")
    plot_scale(Samples.read(RESULTS / "scale.json"), out / "scale.png")
    for name in ("breakdown", "breakdown-without-optimizer"):
        plot_breakdown(Breakdown.read(RESULTS / f"{name}.json"), out / f"{name}.png")
    facts, results = report.read(RESULTS)
    report.plot(results, facts, out / "rivals.png")


def over_pods(axes: Any, title: str, unit: str, sizes: Sequence[int]) -> None:
    """Log axes with a tick at each number of pods that was measured, and the legend."""
    axes.set(xscale="log", yscale="log", title=title, xlabel="pods", ylabel=unit)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _horizontal(axes: Any, names: Sequence[str]) -> None:
    """Axes for horizontal bars, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


_PANELS = {
    JOIN: "First rendezvous",
    REJOIN: "Next rendezvous",
    REPLACE: "A pod is killed, and a replacement already runs",
    SHRINK: "A pod is killed, and the others go on without it",
}
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
"""Where two lines coincide, the wide and pale one is seen below the other."""
_ENDS = {JOB_DIED: "the job fails", TIMEOUT: "no rendezvous in time"}
_BELOW = [("k8s", STANDBY), ("c10d", "")]
_HEADROOM = 3.0
"""How far above the slowest figure the axis goes: there the failures are."""
_END_HEIGHTS = (0.97, 0.91)
"""Where a failure is written, as a fraction of the axis: one line for each variant of c10d."""


def plot(samples: Samples, path: Path) -> None:
    """Write `plot.png`: a panel for each measurement that there is, and no empty one."""
    sized = [what for what in _PANELS if samples.sizes(what)]
    if not sized:
        return
    columns = min(len(sized), 2)
    rows = [sized[first : first + columns] for first in range(0, len(sized), columns)]
    if len(rows[-1]) < columns:
        rows[-1] = rows[-1] * columns
    with picture(path, rows, (6.4 * columns, 4.3 * len(rows) + 0.5)) as (figure, panels):
        for what in sized:
            _by_size(panels[what], samples, what)
        figure.suptitle("Seconds, less is better. Lines: medians. Bands: the fastest to the slowest run.")
        figure.tight_layout()


def _by_size(axes: Any, samples: Samples, what: str) -> None:
    """Median as a line, minimum to maximum as a band, failures as crosses along the top."""
    failures = 0
    for backend, variant in sorted(samples.backends(what), key=lambda pair: pair not in _BELOW):
        points = []
        ended: dict[str, list[int]] = {}
        for n in samples.sizes(what):
            summary = samples.summary(what, n, backend, variant)
            if summary is not None and summary.ended:
                ended.setdefault(summary.ended, []).append(n)
            elif summary is not None and summary.median is not None:
                points.append((n, summary.median, summary.low, summary.high))
        looks = _LOOKS.get((backend, variant), {})
        label = _name(backend, variant)
        if points:
            sizes, medians, lows, highs = zip(*points, strict=True)
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
    over_pods(axes, _PANELS[what], "seconds", samples.sizes(what))
    axes.set_ylim(top=axes.get_ylim()[1] * _HEADROOM)


def _name(backend: str, variant: str) -> str:
    return _NAMES.get((backend, variant), f"{backend}, {variant}" if variant else backend)


_COLOURS = {"k8s": K8S, "c10d": C10D, "etcd-v2": "#2e8b57", "etcd": "#8a6d3b"}
_WHATS = {JOIN: ("first rendezvous", "--"), REJOIN: ("next rendezvous", "-")}
_SCALE_TITLES = {
    JOIN: "A job starts: until all of its pods are in a round",
    REJOIN: "A round is over: until all of its pods are in the next",
}
_SERVERS = {"etcd-v2": "torch's etcd-v2 backend", "etcd": "torch's etcd backend", "c10d": "torch's c10d"}
_COSTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Traffic of the API server": (
        "bytes",
        {"bytes_sent": "from the pods", "bytes_received": "to the pods"},
    ),
    "Requests to the API server": (
        "requests",
        {"requests": "of the pods", "operator_requests": "of the operator"},
    ),
    "CPU time": (
        "seconds",
        {"operator_cpu_seconds": "of the operator", "apiserver_cpu_seconds": "of the API server"},
    ),
    "The operator's memory afterwards": ("MB", {"operator_megabytes": "resident"}),
}
_COST_COLOURS = (K8S, "#e8913c")


def plot_scale(samples: Samples, path: Path) -> None:
    """Write how long a rendezvous takes, at ``path``, and what one costs, beside it."""
    with picture(path, [list(_WHATS)], (12.8, 4.8)) as (figure, panels):
        for what, title in _SCALE_TITLES.items():
            _times(panels[what], samples, what, title)
        figure.suptitle("Seconds (medians), less is better")
        figure.tight_layout()
    titles = list(_COSTS)
    cost = path.with_stem(f"{path.stem}-cost")
    with picture(cost, [titles[:2], titles[2:]], (12.8, 9.0)) as (figure, panels):
        for title, (unit, figures) in _COSTS.items():
            _costs(panels[title], samples, title, unit, figures)
        figure.suptitle("What one rendezvous of an ElasticJob costs")
        figure.tight_layout()


def _times(axes: Any, samples: Samples, what: str, title: str) -> None:
    ended: dict[tuple[int, str], list[str]] = {}
    for backend, _ in samples.backends():
        name = "ElasticJob" if backend == "k8s" else _SERVERS.get(backend, backend)
        points = samples.curve(what, backend)
        if points:
            _curve(axes, points, name, _COLOURS.get(backend), "-")
        for n, outcome in samples.ends(what, backend):
            ended.setdefault((n, outcome), []).append(name)
    for (n, outcome), names in ended.items():
        end = f"no round in {JOIN_TIMEOUT_SECONDS:.0f} s" if outcome == TIMEOUT else outcome
        axes.axvline(n, color="#808080", linestyle=":", linewidth=1)
        words = "\n".join([f"At {n} pods, {end}:", *names])
        axes.text(n * 1.08, 0.97, words, fontsize=8, va="top", transform=axes.get_xaxis_transform())
    over_pods(axes, title, "seconds", samples.sizes(what))
    axes.set_ylim(top=axes.get_ylim()[1] * _HEADROOM)


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


_PHASE_COLOURS = {
    phases.REPORT: "#c9c9c9",
    phases.NOTICE: "#12408f",
    phases.TOLD: "#a8a8a8",
    phases.STOP: "#8a8a8a",
    phases.REPLACEMENT: "#e3c877",
    phases.RENDEZVOUS: K8S,
    phases.RANKS: "#84b0ff",
    phases.START: "#b9a9d6",
    phases.IMPORT: "#d9a7a0",
    phases.STEP: "#9cc39c",
}
_WORTH_A_NUMBER = 0.045
"""A piece that is shorter than this part of the axis has no room for its figure."""


def plot_breakdown(breakdown: Breakdown, path: Path) -> None:
    """Write all phases in seconds and ours once more in milliseconds, as stacked bars: a row for each N."""
    sizes = breakdown.sizes()
    if not sizes:
        return
    size = (15.5, 1.3 + 3.0 * len(sizes))
    rows = [[f"{n}", f"{n}, ours"] for n in sizes]
    with picture(path, rows, size, dpi=120, width_ratios=(2.4, 1)) as (figure, panels):
        for n in sizes:
            bars = [bar for bar in breakdown.bars if bar.n == n]
            _stack(panels[f"{n}"], bars, list(PHASES), 1.0)
            heading = f"{title(breakdown, n)}: from kill -9 to the first step"
            panels[f"{n}"].set(title=heading, xlabel="seconds")
            _stack(panels[f"{n}, ours"], [bar for bar in bars if bar.backend == "k8s"], list(OURS), 1000.0)
            panels[f"{n}, ours"].set(title="of that, what ElasticJob's code takes", xlabel="milliseconds")
        handles = [Rectangle((0, 0), 1, 1, color=_PHASE_COLOURS[phase]) for phase in PHASES]
        labels = [f"{phase} (ElasticJob or c10d)" if phase in OURS else phase for phase in PHASES]
        figure.legend(handles, labels, loc="lower center", ncol=5, fontsize=9, frameon=False)
        figure.tight_layout(rect=(0, 0.9 / figure.get_figheight(), 1, 1))


def _stack(axes: Any, bars: list[Bar], names: list[str], scale: float) -> None:
    """Medians side by side; the whole's median beyond the end, or how it ended."""
    lengths = [sum(bar.medians().get(phase, 0.0) for phase in names) * scale for bar in bars]
    longest = max(lengths, default=0.0) or 1.0
    for position, bar in enumerate(bars):
        left, medians = 0.0, bar.medians()
        for phase in names if medians else ():
            length = medians[phase] * scale
            axes.barh(position, length, left=left, color=_PHASE_COLOURS[phase], height=0.62)
            if length > longest * _WORTH_A_NUMBER:
                colour = "white" if phase in (phases.NOTICE, phases.RENDEZVOUS) else "black"
                middle = left + length / 2
                axes.text(
                    middle, position, _figure(length), ha="center", va="center", fontsize=8, color=colour
                )
            left += length
        text = _figure(left) if medians else bar.total().ended
        axes.text(left + longest * 0.01, position, text, va="center", fontsize=9, fontweight="bold")
    axes.set_xlim(0, longest * 1.12)
    _horizontal(axes, [bar.name.replace("k8s", "ElasticJob") for bar in bars])


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


if __name__ == "__main__":
    main()
