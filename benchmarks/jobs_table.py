"""The figures of `benchmarks.jobs` as tables, a column for each number of jobs, and which aims they miss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import markdown
from benchmarks.jobs_phases import HOSTILE, PHASES, Figures

Results = Mapping[int, Mapping[str, Figures]]
"""Figures by number of jobs and phase."""


@dataclass(frozen=True)
class Aim:
    """The most that a figure of a phase should be; ``value`` reads the figure."""

    phase: str
    figure: str
    most: float
    value: Callable[[object], float] = lambda found: float(str(found))


def _p99(found: object) -> float:
    return float(found[-1]) if isinstance(found, list) and found else 0.0


AIMS = (
    *(Aim(phase, "longest collection, ms", 50) for phase in PHASES),
    *(Aim(phase, "operator MiB, highest so far", 286) for phase in PHASES),
    Aim("start", "requests per job beside its pods", 12),
    Aim("steady", "operator's share of a core, %", 5),
    Aim("loss", "loss to its record, ms, p50 and p99", 100, _p99),
    Aim("loss", "operator's own part, ms, p50 and p99", 20, _p99),
    Aim("storm", "operator CPU s", 3),
    Aim(HOSTILE, "operator MiB, highest so far", 512),
    Aim(HOSTILE, "loss to its record, ms, p50 and p99", 100, _p99),
    Aim(HOSTILE, "losses without a record", 0),
    Aim(HOSTILE, "changes of leader", 0),
    Aim("restart", "from leading to its record, s", 5),
    Aim("takeover", "from leading to its record, s", 5),
    Aim("deletion", "more than before, %", 20),
    Aim("deletion", "operator's writes to what is gone", 0),
)
"""286 MiB are 300 MB, 512 the chart's limit."""


def missed(results: Results) -> list[str]:
    """A sentence for each aim that was not reached."""
    found = []
    for jobs, phases in results.items():
        for aim in AIMS:
            figure = phases.get(aim.phase, {}).get(aim.figure)
            if figure is not None and aim.value(figure) > aim.most:
                found.append(f"{jobs} jobs, {aim.phase}: {aim.figure}: {_cell(figure)}, aim {aim.most:g}")
    return found


def document(results: Results, facts: Mapping[str, object]) -> str:
    """The whole file."""
    sections = []
    for phase in (*PHASES, HOSTILE):
        columns = {jobs: phases[phase] for jobs, phases in results.items() if phase in phases}
        if columns:
            sections.append(markdown.section(phase, _table(phase, columns)))
    return markdown.document("Many jobs of one operator", markdown.facts(facts), *sections)


def _table(phase: str, columns: Mapping[int, Figures]) -> str:
    aims = {aim.figure: f"{aim.most:g}" for aim in AIMS if aim.phase == phase}
    figures = list(dict.fromkeys(figure for column in columns.values() for figure in column))
    rows = [
        [figure, aims.get(figure, ""), *(_cell(column.get(figure)) for column in columns.values())]
        for figure in figures
    ]
    return markdown.table(["", "aim, at most", *(f"{jobs} jobs" for jobs in columns)], rows)


def _cell(found: object) -> str:
    if found is None:
        return ""
    if isinstance(found, Mapping):
        return "<br>".join(f"{name}: {count}" for name, count in found.items())
    return " / ".join(map(str, found)) if isinstance(found, list) else str(found)
