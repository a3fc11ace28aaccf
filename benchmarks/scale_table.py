"""The figures of `benchmarks.scale` as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import markdown
from benchmarks.markdown import document, facts, number, section, spread
from benchmarks.plan import JOIN, REJOIN
from benchmarks.results import SECONDS, Samples

TITLES = {
    JOIN: "First join: N fresh participants, TLS connections and all",
    REJOIN: "Re-join: all call again after a completed round",
}
TARGETS = {REJOIN: {256: 0.5, 1000: 2.0, 4000: 8.0}, JOIN: {}}
"""Seconds that were set as the aim."""
MAX_MEGABYTES = 300.0
"""The most that the operator may have, at any N."""
MAX_WATCH_GROWTH = 1.1
"""Exponent of N by which the bytes of all watches may grow from one re-join to a larger one."""
FIT_FROM = 32
"""With fewer participants the time is that of a few requests, and says nothing about growth."""
_COLUMNS: Sequence[tuple[str, str, Callable[[float, int], float] | None]] = (
    ("API requests per participant", "requests", lambda value, n: value / n),
    ("API requests of the operator", "operator_requests", None),
    ("KB per participant on the wire", "bytes_sent+bytes_received", lambda value, n: value / n / 1000),
    ("KB of all watches per participant", "watch_bytes", lambda value, n: value / n / 1000),
    ("operator CPU, s", "operator_cpu_seconds", None),
    ("API server CPU, s", "apiserver_cpu_seconds", None),
    ("participants' CPU, s", "swarm_cpu_seconds", None),
    ("operator memory, MB", "operator_megabytes", None),
    ("API server memory, MB", "apiserver_megabytes", None),
)
"""Title, figure, and what is shown of its value at N."""
_STEPS = (
    ("last announcement written", "written_seconds"),
    ("round published", "published_seconds"),
    ("round seen by the last", "seen_seconds"),
    ("last return", SECONDS),
)


_HEAD = (
    "Seconds: median (minimum to maximum), from the last participant's call of `next_rendezvous` to the "
    "last participant's return. Ours: participants are coroutines in a few processes, each with its own "
    "TLS connections, against a real API server and the real operator; all of it shares the machine's "
    "CPUs. The others: one process per participant. `growth` is the exponent of N from N = 32 on."
)


def table(samples: Samples) -> str:
    """The whole document."""
    sections = [
        section(
            title,
            _times(samples, what),
            "What a round of ours costs, all together:",
            _costs(samples, what),
            "Where the time goes, seconds since the last call:",
            _way(samples, what),
        )
        for what, title in TITLES.items()
        if samples.sizes(what)
    ]
    return document("Up to 4,000 participants", _HEAD, facts(samples.environment), *sections)


def _times(samples: Samples, what: str) -> str:
    backends = [backend for backend, _ in samples.backends()]
    rows = []
    for n in samples.sizes(what):
        aim = TARGETS[what].get(n)
        found = [samples.summary(what, n, backend) for backend in backends]
        rows.append([str(n), *(spread(one) if one else "" for one in found), number(aim)])
    growth = [fit(samples.curve(what, backend)) for backend in backends]
    rows.append(["growth", *(f"N^{found.exponent:.2f}" if found else "" for found in growth), ""])
    return markdown.table(["N", *backends, "target"], rows)


def _costs(samples: Samples, what: str) -> str:
    rows = []
    for n in samples.sizes(what, "k8s"):
        row = [str(n)]
        for _, name, scaled in _COLUMNS:
            value = total(samples, what, n, name)
            row.append(number(value if value is None or scaled is None else scaled(value, n)))
        rows.append(row)
    return markdown.table(["N", *(title for title, _, _ in _COLUMNS)], rows)


def _way(samples: Samples, what: str) -> str:
    rows = [
        [str(n), *(number(total(samples, what, n, name)) for _, name in _STEPS)]
        for n in samples.sizes(what, "k8s")
    ]
    return markdown.table(["N", *(title for title, _ in _STEPS)], rows)


def missed_aims(samples: Samples) -> list[str]:
    """A sentence for each measured size that missed an aim."""
    missed = []
    for what, aims in TARGETS.items():
        for n, seconds in samples.curve(what, "k8s"):
            if seconds > aims.get(n, math.inf):
                missed.append(f"{what} of {n} took {seconds:.2f} s, and shall take {aims[n]:g} s")
        for n, megabytes in samples.curve(what, "k8s", "operator_megabytes"):
            if megabytes > MAX_MEGABYTES:
                missed.append(f"{what} of {n}: the operator has {megabytes:.0f} MB")
    growth = fit(samples.curve(REJOIN, "k8s", "watch_bytes"))
    if growth is not None and growth.exponent > MAX_WATCH_GROWTH:
        missed.append(f"the bytes of all watches of a re-join grow as N^{growth.exponent:.2f}")
    return missed


def total(samples: Samples, what: str, n: int, names: str) -> float | None:
    """The median of a figure of ours, or the sum of those of several with a plus between their names."""
    medians = [samples.median(what, n, "k8s", name) for name in names.split("+")]
    found = [value for value in medians if value is not None]
    return sum(found) if found else None


@dataclass(frozen=True)
class Fit:
    """value = factor * N ** exponent, by least squares of the logarithms."""

    factor: float
    exponent: float

    def at(self, n: float) -> float:
        """The value at N."""
        return float(self.factor * n**self.exponent)


def fit(points: Sequence[tuple[int, float]], start: int = FIT_FROM) -> Fit | None:
    """The power law through the points from N = `start` on; None with fewer than two of them."""
    logs = [(math.log(n), math.log(value)) for n, value in points if n >= start and value > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    slope, intercept = statistics.linear_regression([x for x, _ in logs], [y for _, y in logs])
    return Fit(math.exp(intercept), slope)
