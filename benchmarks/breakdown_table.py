"""The breakdown as a Markdown table: phases by bar, totals, and the ratios, which are what counts."""

from __future__ import annotations

import statistics
from operator import attrgetter

from benchmarks import markdown
from benchmarks.breakdown import BARE, OURS, PATH, PHASES, REPLACED, WORKER, Bar, Breakdown
from benchmarks.markdown import document, facts, number, section, spread
from benchmarks.results import Summary

_HEAD = (
    "One of N torchruns with one worker each is killed with its worker; N are needed. Seconds, medians; "
    "a phase ends when the last one has passed its milestone. *standby*: a spare had joined before; "
    "*replacement*: it starts after the kill (ours: the operator makes a pod; c10d: the benchmark starts "
    "a torchrun at the moment of the kill). c10d has store sharing off, without which no replacement can "
    "join. *worker killed*: only a worker, its torchrun stays. *warm*: with warm workers. *bare start*: "
    "`torchrun --standalone` with N workers of the same script, from the start of "
    "torchrun. Ours is what our code is waited for in: "
    + ", ".join(OURS)
    + "; where only a worker was killed, "
    "torch's own noticing is part of the first."
)
_BESIDE = "![phases](breakdown.png)\n\nOne rendezvous, step by step: [trace](trace.md)."


def table(breakdown: Breakdown) -> str:
    """The whole document."""
    return document(
        "From kill -9 to the first step: where the time goes",
        _HEAD,
        facts(breakdown.environment),
        _BESIDE,
        *(section(title(breakdown, n), _phases_table(breakdown, n)) for n in breakdown.sizes()),
        *([section("Two interruptions", _TWICE, _pauses_table(breakdown))] if breakdown.pauses else []),
        *([section("Memory of a pod", _MEMORY, _memory_table(breakdown))] if breakdown.memory else []),
        section("The replacement's own way", _path_table(breakdown)),
        section("The phases", "\n".join(f"- {name}: {text}" for name, text in PHASES.items())),
    )


_MEMORY = (
    "MiB that a torchrun and all its processes share with no other process: while it trains, and while it "
    "stands by. *warm*: when the interpreters for the next round are ready."
)


def _memory_table(breakdown: Breakdown) -> str:
    rows = []
    for workers in sorted({one.workers for one in breakdown.memory}):
        found = {one.warm: one for one in breakdown.memory if one.workers == workers}
        kinds = (getter(found[warm]) for getter in _KINDS for warm in (False, True) if warm in found)
        rows.append([str(workers), *(f"{mib:.0f}" for mib in kinds)])
    return markdown.table(["workers", "trains", "trains, warm", "stands by", "stands by, warm"], rows)


_KINDS = attrgetter("trains"), attrgetter("stands_by")
_TWICE = (
    "One of N torchruns is killed with its worker, and N - 1 are enough: the others go on, then another "
    "torchrun is started, and all N train. Seconds, medians and spread. *goes on*: from the kill to the next "
    "step of those that are left. *grows again*: how long these make no step when the other one comes. "
    "*until it trains*: from the start of the other torchrun to the first step of all N; those that are left "
    "train meanwhile."
)


def _pauses_table(breakdown: Breakdown) -> str:
    rows = [
        [
            f"{row.name}, N = {row.n}",
            *(spread(Summary.of(times, row.outcomes)) for times in (row.shrunk, row.grown, row.came)),
        ]
        for row in breakdown.pauses
    ]
    return markdown.table(["", "goes on", "grows again", "until it trains"], rows)


def title(breakdown: Breakdown, n: int) -> str:
    """What N counts, for a heading."""
    one_pod = all(WORKER in bar.variant for bar in breakdown.bars if bar.n == n)
    return f"{n} workers of one torchrun" if one_pod else f"{n} torchruns"


def _phases_table(breakdown: Breakdown, n: int) -> str:
    bars = [bar for bar in breakdown.bars if bar.n == n]
    bare = breakdown.find("", BARE, n)
    rows = [
        [phase, *(number(bar.medians().get(phase) or None) for bar in bars)]
        for phase in PHASES
        if any(bar.medians().get(phase) for bar in bars)
    ]
    rows.append(["**total**", *(spread(bar.total()) for bar in bars)])
    rows.append(["ours", *(number(bar.ours().median) if bar.backend == "k8s" else "" for bar in bars)])
    if bare is not None:
        rows.append(["total by bare start", *(_by(bar, bare) for bar in bars)])
    if any(bar.memory for bar in bars):
        rows.append(["private memory of a torchrun, MiB", *(_memory(bar) for bar in bars)])
    rows.append(["k8s by c10d", *(_by(_ours_beside(breakdown, bar), bar) for bar in bars)])
    return markdown.table(["phase", *(bar.name for bar in bars)], rows)


def _ours_beside(breakdown: Breakdown, bar: Bar) -> Bar | None:
    """The bar of ours beside a bar of c10d."""
    if bar.backend != "c10d":
        return None
    return breakdown.find("k8s", bar.variant, bar.n) or breakdown.find("k8s", REPLACED, bar.n)


def _path_table(breakdown: Breakdown) -> str:
    bars = [bar for bar in breakdown.bars if bar.path_medians()]
    rows = [
        [name, *(number(bar.path_medians().get(name)) for bar in bars)]
        for name in PATH
        if any(name in bar.path_medians() for bar in bars)
    ]
    return markdown.table(["from, to", *(f"{bar.name}, N = {bar.n}" for bar in bars)], rows)


def _memory(bar: Bar) -> str:
    return f"{statistics.median(bar.memory):.0f}" if bar.memory else ""


def _by(one: Bar | None, other: Bar) -> str:
    ours, theirs = one.total().median if one is not None else None, other.total().median
    return number(ours / theirs) if ours is not None and theirs else ""
