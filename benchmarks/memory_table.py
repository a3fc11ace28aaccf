"""The figures of memory checkpoints, and their tables: medians, spread and ratios of pairs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks import markdown
from benchmarks.markdown import number
from benchmarks.memory_cost import RANKS, SETTLED_STEPS, WITHOUT, Cost, Held
from benchmarks.memory_kills import EVERY, STEP_SECONDS, Kill
from benchmarks.results import Summary


@dataclass
class Figures:
    """Of one run of the benchmark."""

    environment: Mapping[str, object]
    costs: list[Cost] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)

    def add(self, one: Cost | Kill | Held) -> None:
        """Append one."""
        if isinstance(one, Cost):
            self.costs.append(one)
        elif isinstance(one, Kill):
            self.kills.append(one)
        else:
            self.held.append(one)

    def content(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def table(figures: Figures) -> str:
    """The whole document."""
    parts = (
        (figures.costs, "What saving every step costs", _COSTS, costs_table(figures.costs)),
        (figures.kills, "From kill -9 to the next new step", _KILLS, kills_table(figures.kills)),
        (figures.held, "Memory of a pod", _HELD, held_table(figures.held)),
    )
    return markdown.document(
        "Memory checkpoints",
        "Medians (minimum to maximum). One worker in each pod; all pods on one machine, shared with "
        "operator and API server, so that all copies stay in its memory. The state is the same on all ranks, "
        "as with DDP, and each saves its share.",
        markdown.facts(figures.environment),
        *(markdown.section(title, text, rows) for found, title, text, rows in parts if found),
    )


_COSTS = (
    f"{RANKS} ranks. *saved*: what each rank saves, every step: to memory, with a copy in the other pod, or "
    "with `Checkpoints` to a folder on /dev/shm, which must not be full and is lost with the node. *step*: "
    "waits, as a processor does for a GPU, or computes on one core per rank, so that no core is free. "
    "Milliseconds per step are all of the time by the number of steps; *by without* is the ratio of runs "
    "that took turns. *stop*: seconds for which a save stops the rank that it stops longest; the first of a "
    f"process, and the others that were not skipped. Each without the first {SETTLED_STEPS} steps."
)
_KILLS = (
    f"{RANKS} ranks in two pods, warm workers on, steps of {STEP_SECONDS:g} s. Seconds from the kill until "
    "the last worker has ended the first step of the next round, and the first never trained before. "
    f"To memory each step is saved; to the folder and the store each {EVERY}th, so one per second, and the "
    "kill comes in the middle between two saves. The folder is in the page cache. The store is that folder "
    "through fsspec, where each process sleeps so that it reads and writes 200 MB/s; it has no latency."
)
_HELD = (
    "MB of memfds that the torchrun of a pod and its worker have open at most, mean of all pods, beside "
    "4 x state / pods."
)


def costs_table(costs: Sequence[Cost]) -> str:
    """A row for each way to save."""
    rows = []
    for megabytes, computes, way in dict.fromkeys((one.megabytes, one.computes, one.way) for one in costs):
        found = [one for one in costs if (one.megabytes, one.computes, one.way) == (megabytes, computes, way)]
        rows.append(
            [
                f"{megabytes} MB",
                "computes" if computes else "waits",
                way,
                _spread(one.step for one in found),
                _spread(ratios(costs, found)) if way != WITHOUT else "",
                _spread(one.first_stop for one in found) if way != WITHOUT else "",
                _spread(one.stop for one in found) if way != WITHOUT else "",
                f"{sum(one.skipped for one in found)} of {sum(one.saves for one in found)}"
                if way != WITHOUT
                else "",
            ]
        )
    header = ["saved", "step", "to", "ms per step", "by without", "first stop", "stop", "skipped"]
    return markdown.table(header, rows)


def ratios(costs: Sequence[Cost], found: Sequence[Cost]) -> list[float]:
    """Each by the run without saves of its turn, if there was one."""
    without = {(one.pair, one.megabytes, one.computes): one.step for one in costs if one.way == WITHOUT}
    keys = ((one, (one.pair, one.megabytes, one.computes)) for one in found)
    return [one.step / without[key] for one, key in keys if key in without]


def kills_table(kills: Sequence[Kill]) -> str:
    """A row for each kind and source."""
    rows = []
    for kind, source, megabytes in dict.fromkeys((one.kind, one.source, one.megabytes) for one in kills):
        found = [one for one in kills if (one.kind, one.source, one.megabytes) == (kind, source, megabytes)]
        redone = [one.redone for one in found]
        rows.append(
            [
                kind,
                source,
                f"{megabytes} MB",
                _spread(one.first for one in found),
                _spread(one.new for one in found),
                f"{statistics.median(redone):g} ({min(redone)} to {max(redone)})",
                str(len(found)),
            ]
        )
    header = ["killed", "resumed from", "state", "next step", "next new step", "steps redone", "runs"]
    return markdown.table(header, rows)


def held_table(held: Sequence[Held]) -> str:
    """A row for each number of pods."""
    rows = [
        [
            str(one.pods),
            f"{one.state} MB",
            number(one.megabytes),
            number(one.formula),
            number(one.megabytes / one.formula),
        ]
        for one in held
    ]
    return markdown.table(["pods", "state", "held", "4 x state / pods", "ratio"], rows)


def _spread(figures: Iterable[float | None]) -> str:
    found = list(figures)
    if any(one is None for one in found) or not found:
        return ""
    return _three_digits(Summary.of(found, ()))


def _three_digits(summary: Summary) -> str:
    """With three digits after the point where a ratio near 1 needs them."""
    figures = (summary.median, summary.low, summary.high)
    median, low, high = (f"{one:.3f}" if one is not None and one < 10 else number(one) for one in figures)
    return f"{median} ({low} to {high})"
