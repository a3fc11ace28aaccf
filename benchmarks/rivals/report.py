"""The results as JSON, a table and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.drawing import C10D, K8S, picture
from benchmarks.rivals.judging import Cost, Result
from benchmarks.rivals.pods import RESTART_SECONDS
from benchmarks.rivals.schedule import KINDS

NAME = "rivals"
FAULTS = "faults from step"
_COLOURS = ("#9db9f0", K8S, "#12408f", "#eab0a6", C10D, "#2e8b57", "#8a6d3b", "#7b5ea7", "#444444")


def write(out: Path, facts: Mapping[str, object], results: Sequence[Result]) -> None:
    """All three files."""
    out.mkdir(parents=True, exist_ok=True)
    content = {"environment": facts, "results": [asdict(result) for result in results]}
    (out / f"{NAME}.json").write_text(json.dumps(content) + "\n")
    (out / f"{NAME}.md").write_text(table(facts, results))
    plot(results, facts, out / f"{NAME}.png")


def read(out: Path) -> tuple[dict[str, Any], list[Result]]:
    """The facts and results that are there."""
    content = json.loads((out / f"{NAME}.json").read_text())
    return content["environment"], [Result.parse(result) for result in content["results"]]


def table(facts: Mapping[str, object], results: Sequence[Result]) -> str:
    """The document."""
    head = ("system", "minutes to the last step", "steps redone", "starts of agents", "loss", "what ended it")
    costs = ("system", "a step", *KINDS)
    return markdown.document(
        "Rivals",
        markdown.facts(facts),
        markdown.table(head, [_whole(result) for result in results]),
        markdown.section(
            "Seconds lost",
            "Until the next fault or the end, less what as many new steps take undisturbed; in brackets: "
            f"until the next new step. An agent that has ended is started again after {RESTART_SECONDS:g} s.",
            markdown.table(costs, [_by_fault(result) for result in results if result.reached]),
        ),
        markdown.section(
            "Versions and flags",
            markdown.table(
                ("system", "version", "flags that differ from its defaults"),
                [(result.system, result.version, result.flags) for result in results],
            ),
        ),
    )


def _whole(result: Result) -> tuple[str, ...]:
    trained = result.reached > 0
    return (
        result.system,
        markdown.number(result.minutes) or "-",
        str(result.redone) if trained else "-",
        str(result.starts) if trained else "-",
        "-" if result.loss is None else f"{result.loss:.4f}",
        result.ended.replace("|", "\\|"),
    )


def _by_fault(result: Result) -> tuple[str, ...]:
    by_kind = {cost.kind: cost for cost in result.faults}
    return (
        result.system,
        f"{result.pace:.2f} s" if result.pace else "-",
        *map(_cost, map(by_kind.get, KINDS)),
    )


def _cost(cost: Cost | None) -> str:
    if cost is None:
        return "-"
    new = "never" if cost.new is None else f"{cost.new:.1f}"
    lost = "-" if cost.lost is None else f"{max(cost.lost, 0.0):.1f}"
    return f"{lost} ({new}){cost.note and ': '}{cost.note}"


def plot(results: Sequence[Result], facts: Mapping[str, object], path: Path) -> None:
    """Steps over minutes: a line for each system, a cross where one has come to nothing."""
    with picture(path, [["steps"]], (9.6, 5.4)) as (figure, panels):
        axes = panels["steps"]
        for result, colour in zip(results, cycle(_COLOURS), strict=False):
            points = [(at / 60, step) for step, at in enumerate(result.curve, 1) if at is not None]
            if not points:
                continue
            minutes, trained = zip(*points, strict=True)
            axes.plot(minutes, trained, color=colour, label=result.system, linewidth=1.8)
            if result.minutes is None:
                axes.plot(minutes[-1:], trained[-1:], marker="x", markersize=9, color=colour)
        for step in filter(None, str(facts.get(FAULTS, "")).split(" / ")):
            axes.axhline(int(step), color="#c0c0c0", linewidth=0.8, linestyle=":")
        axes.set(xlabel="minutes", ylabel="steps that were new", xlim=(0, None), ylim=(0, None))
        axes.set_title("One training under six faults (dotted lines); further left is better")
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, loc="lower right")
        figure.tight_layout()
