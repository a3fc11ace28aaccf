"""What is measured, how often and in which order.

The order keeps the comparison honest: for each measurement and each N the backends take turns, run by run, so
that the machine's other work meets both.

What a plain run measures is chosen to end within 40 minutes on two cores. c10d's replace and shrink cost 15
and 45 seconds each, almost all of it waiting for a heartbeat to expire, and as it ships every replace is the
death of the job after 75 seconds: they stop at N = 32 and are repeated less often. `--n` and `--runs` apply
as given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.results import STANDBY, STORE_SHARING_OFF

JOIN = "join"
REJOIN = "rejoin"
REPLACE = "replace"
SHRINK = "shrink"
WHATS = (JOIN, REJOIN, REPLACE, SHRINK)
BREAKDOWN = "breakdown"
"""Measured only when it is asked for, with files of its own: see `benchmarks.breakdown`."""
SCALE = "scale"
"""Very many participants as coroutines, with files of its own: see `benchmarks.scale`."""
NOTICING = "noticing"
"""Measured only when it is asked for, with files of its own: see `benchmarks.noticing`."""
STEADY = "steady"
"""Measured only when it is asked for, with files of its own: see `benchmarks.steady`."""
BACKENDS = ("k8s", "c10d")

SIZES = (2, 8, 32, 64, 128)
TASK_SECONDS = 45.0
"""Seconds after which a task of a plain run is not repeated: c10d may need minutes to give up."""
TOTAL_SECONDS = 32 * 60.0
"""When a plain run has taken this long, nothing is repeated any more."""
_C10D_REFORM_SIZES = (2, 8, 32)
_RUNS = {JOIN: 5, REJOIN: 5, REPLACE: 3, SHRINK: 3}
_C10D_RUNS = {
    (REPLACE, ""): 1,
    (REPLACE, STORE_SHARING_OFF): 2,
    (SHRINK, ""): 1,
    (SHRINK, STORE_SHARING_OFF): 1,
}


@dataclass(frozen=True)
class Task:
    """One session of one backend, `runs` times. `whats` are the figures that a session gives."""

    whats: tuple[str, ...]
    backend: str
    variant: str
    n: int
    runs: int


def plan(
    whats: Sequence[str], sizes: Sequence[int] | None, runs: int | None, backends: Sequence[str]
) -> list[Task]:
    """The tasks for what was asked; `sizes` and `runs` None mean those of a plain run."""
    tasks: list[Task] = []
    joins = tuple(what for what in (JOIN, REJOIN) if what in whats)
    groups: list[tuple[str, ...]] = [joins] if joins else []
    groups += [(what,) for what in (REPLACE, SHRINK) if what in whats]
    for group in groups:
        for n in sizes or SIZES:
            for backend in backends:
                if sizes is None and n not in _sizes(group[0], backend):
                    continue
                for variant in _variants(group[0], backend):
                    times = runs or _default_runs(group[0], backend, variant)
                    tasks.append(Task(group, backend, variant, n, times))
    return tasks


def in_turns(tasks: Sequence[Task]) -> Iterator[Task]:
    """Every task as often as it has runs: the backends of one measurement and N in turns."""
    for _, group in groupby(tasks, key=lambda task: (task.whats, task.n)):
        together = list(group)
        for run in range(max(task.runs for task in together)):
            yield from (task for task in together if run < task.runs)


def _variants(what: str, backend: str) -> tuple[str, ...]:
    if backend == "c10d":
        return ("", STORE_SHARING_OFF)
    return ("", STANDBY) if what == REPLACE else ("",)


def _sizes(what: str, backend: str) -> tuple[int, ...]:
    return _C10D_REFORM_SIZES if backend == "c10d" and what in (REPLACE, SHRINK) else SIZES


def _default_runs(what: str, backend: str, variant: str) -> int:
    if backend == "c10d" and (what, variant) in _C10D_RUNS:
        return _C10D_RUNS[what, variant]
    return _RUNS[what]
