"""Where the time goes from kill -9 to the first step of the next round: phases out of time stamps. Pure.

All stamps are seconds of CLOCK_MONOTONIC. A phase ends when the last one who takes part in the next round has
passed its milestone, so the phases of a run add up to the time from the kill to the last worker's first step.
A milestone that came before the one in front of it (a worker that failed before the record said that the
round is over) gives a phase of no length.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import OK, Summary

REPORT = "container's end reported"
NOTICE = "round broken"
TOLD = "agents act"
STOP = "stop workers"
REPLACEMENT = "start new torchrun"
RENDEZVOUS = "rendezvous"
RANKS = "assign ranks"
START = "start processes"
IMPORT = "import torch"
STEP = "first step"

PHASES: Mapping[str, str] = {
    REPORT: "from the kill until the API server knows that the container has ended (here devcluster's node "
    "agent or the benchmark; kubelet takes up to a second)",
    NOTICE: "until the round record says Broken: the operator's pass, two writes. If only a worker was "
    "killed, from the kill: torch looks for it every 0.1 s, and its agent reports it first",
    TOLD: "until the last survivor's agent begins to stop its workers: torch looks every 0.1 s",
    STOP: "until the last survivor calls `next_rendezvous`: torch's SIGTERM to its workers",
    REPLACEMENT: "until the replacement calls: its pod, the start of Python, torch's import, the handler",
    RENDEZVOUS: "until the last return of `next_rendezvous`",
    RANKS: "until the last agent starts its workers: torch exchanges ranks in the round's store",
    START: "until the last worker's first line: fork, exec, the start of Python",
    IMPORT: "until the last worker has imported torch",
    STEP: "until the last worker has ended its first step: init_process_group, gloo, the import of "
    "`torch._dynamo` by the optimizer, one all_reduce",
}
OURS = (NOTICE, RENDEZVOUS, RANKS)
"""The phases in which our code is what is waited for; all others are torch's, Python's or the node's."""

PATH: Mapping[str, tuple[str, str]] = {
    "round broken, to the pod made": ("broken", "pod"),
    "pod made, to torchrun's process": ("pod", "process"),
    "start of Python": ("process", "python"),
    "torchrun's import of torch": ("python", "imported"),
    "torchrun's own start": ("imported", "asked"),
    "the handler: import and creation": ("asked", "made"),
    "to the call of `next_rendezvous`": ("made", "called"),
    "`next_rendezvous`": ("called", "returned"),
    "in all, from the process to the call": ("process", "called"),
}
"""The replacement's own way, from one stamp to the next."""

BARE = "bare start"
STANDBY = "standby"
REPLACED = "replacement"
WORKER = "worker killed"
RETURN = "shrink and return"
MEMORY = "memory"
WARM = ", warm"
"""The end of a variant's name, if it has warm workers."""


@dataclass(frozen=True)
class Worker:
    """What one worker process has stamped; ``steps`` are (seconds, world size)."""

    started: float
    imported: float
    steps: Sequence[tuple[float, int]] = ()

    def first_step(self, world_size: int, since: float) -> float | None:
        """Its first step in a world of that size, if the process was started after ``since``."""
        if self.started < since:
            return None
        return next((at for at, size in self.steps if size == world_size), None)


@dataclass(frozen=True)
class Agent:
    """What one torchrun has stamped, in order, and its workers."""

    stamps: Sequence[tuple[str, float]]
    workers: Sequence[Worker] = ()

    def first(self, name: str, since: float) -> float | None:
        """The first stamp of that name since then."""
        return next((at for stamp, at in self.stamps if stamp == name and at >= since), None)

    def is_new(self, since: float) -> bool:
        """Whether it was started since then (the stamp ``process`` is rounded down by hundredths)."""
        return self.first("python", since) is not None

    def last(self, name: str, until: float) -> float | None:
        """The last stamp of that name until then."""
        return next((at for stamp, at in reversed(self.stamps) if stamp == name and at <= until), None)

    def trained(self, world_size: int, since: float) -> list[Worker]:
        """Its workers of the next round."""
        return [worker for worker in self.workers if worker.first_step(world_size, since) is not None]


@dataclass(frozen=True)
class Run:
    """One kill (or, of the bare start, one start) and what was stamped; None is what has no stamp.

    ``world_size`` is the number of workers of the next round, and ``marks`` holds what the cluster knew:
    ``reported``, ``broken`` and ``pod``, the making of the replacement's pod.
    """

    killed: float
    world_size: int
    agents: Sequence[Agent]
    marks: Mapping[str, float] = field(default_factory=dict)
    memory: float | None = None
    """MiB that a torchrun and its processes share with no other, before the kill."""

    def trains(self) -> bool:
        """Whether every worker of the next round has ended its first step."""
        return (
            sum(len(agent.trained(self.world_size, self.killed)) for agent in self.agents) >= self.world_size
        )

    def until(self) -> float:
        """Seconds until the last worker of the next round has ended its first step."""
        workers = [worker for agent in self.agents for worker in agent.trained(self.world_size, self.killed)]
        return max(worker.first_step(self.world_size, self.killed) or 0.0 for worker in workers) - self.killed

    def phases(self) -> dict[str, float]:
        """The length of each phase, in their order. The run must have come to its first step."""
        members = [agent for agent in self.agents if agent.trained(self.world_size, self.killed)]
        workers = [worker for agent in members for worker in agent.trained(self.world_size, self.killed)]
        if not self.trains():
            raise ValueError(f"{len(workers)} of {self.world_size} workers have ended their first step")
        survivors = [agent for agent in members if not agent.is_new(self.killed)]
        told = _latest(agent.first("told", self.killed) for agent in survivors)
        broken = _earliest(self.marks.get("broken"), told)
        starts = {
            id(agent): min(w.started for w in agent.trained(self.world_size, self.killed))
            for agent in members
        }
        milestones = {
            REPORT: _earliest(self.marks["reported"], broken)
            if {"reported", "broken"} <= {*self.marks}
            else None,
            NOTICE: broken if "broken" in self.marks else None,
            TOLD: told,
            STOP: _latest(agent.first("called", self.killed) for agent in survivors),
            REPLACEMENT: _latest(agent.first("called", self.killed) for agent in members),
            RENDEZVOUS: _latest(agent.last("returned", starts[id(agent)]) for agent in members),
            RANKS: _latest(agent.last("ranked", starts[id(agent)]) for agent in members),
            START: max(worker.started for worker in workers),
            IMPORT: max(worker.imported for worker in workers),
            STEP: max(worker.first_step(self.world_size, self.killed) or 0.0 for worker in workers),
        }
        found, before = {}, self.killed
        for phase in PHASES:
            at = milestones[phase]
            found[phase] = max(0.0, at - before) if at is not None else 0.0
            before = max(before, at) if at is not None else before
        return found

    def path(self) -> dict[str, float]:
        """The replacement's way, as far as it has stamps; {} if no torchrun was started after the kill."""
        newest = [agent for agent in self.agents if agent.is_new(self.killed)]
        if not newest:
            return {}
        stamps = {**self.marks, **dict(newest[-1].stamps)}
        return {
            name: stamps[end] - stamps[begin]
            for name, (begin, end) in PATH.items()
            if begin in stamps and end in stamps
        }


def pause(agents: Sequence[Agent], before: int, after: int, since: float) -> float | None:
    """For how long no worker stepped when a world of ``before`` became one of ``after`` workers: from the
    last step of the smaller or larger world to the end of the first step of all workers of the next.
    None while they have not. Workers of the next world were started after ``since``."""
    workers = [worker for agent in agents for worker in agent.workers]
    firsts = [at for worker in workers if (at := worker.first_step(after, since)) is not None]
    if len(firsts) < after:
        return None
    last = _latest(
        at for worker in workers for at, size in worker.steps if size == before and at < min(firsts)
    )
    return None if last is None else max(firsts) - last


@dataclass
class Pauses:
    """One of N torchruns is killed, the others go on without it; then another one comes, and all N train
    again. ``shrunk``: seconds from the kill to the next step of those that are left. ``grown``: how long
    these did not step when the other one came. ``came``: from its start to the first step of all. Runs that
    ended well; ``outcomes`` has all."""

    backend: str
    variant: str
    n: int
    shrunk: list[float] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its row."""
        return f"{self.backend}, {self.variant}"

    def add(self, shrunk: float, grown: float, came: float) -> None:
        """Append a run that ended well."""
        self.shrunk.append(shrunk)
        self.grown.append(grown)
        self.came.append(came)
        self.outcomes.append(OK)


class Memory(NamedTuple):
    """MiB that a torchrun with this many ``workers`` and all its processes share with no other process: while
    it trains, and while it stands by. ``warm``: with warm workers, when their interpreters are ready."""

    workers: int
    warm: bool
    trains: float
    stands_by: float


@dataclass
class Bar:
    """One run, repeated. ``phases`` and ``paths`` hold those that ended well, ``outcomes`` all."""

    backend: str
    variant: str
    n: int
    phases: list[dict[str, float]] = field(default_factory=list)
    paths: list[dict[str, float]] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The label of the bar."""
        return f"{self.backend}, {self.variant}" if self.backend else self.variant

    def add(self, run: Run) -> None:
        """Append a run that ended well."""
        self.phases.append(run.phases())
        self.paths.append(run.path())
        self.memory += [] if run.memory is None else [run.memory]
        self.outcomes.append(OK)

    def medians(self) -> dict[str, float]:
        """The median of each phase; they need not add up to the median of the whole."""
        if not self.phases:
            return {}
        return {phase: statistics.median(run.get(phase, 0.0) for run in self.phases) for phase in PHASES}

    def path_medians(self) -> dict[str, float]:
        """The median of each part of the replacement's way."""
        names = [name for name in PATH if any(name in path for path in self.paths)]
        return {name: statistics.median(path[name] for path in self.paths if name in path) for name in names}

    def total(self) -> Summary:
        """Median and spread of the whole."""
        return Summary.of([sum(run.values()) for run in self.phases], self.outcomes)

    def ours(self) -> Summary:
        """Median and spread of the phases that are ours."""
        return Summary.of([sum(run.get(phase, 0.0) for phase in OURS) for run in self.phases], self.outcomes)


class Breakdown:
    """All bars of a run of the benchmark, in the order in which they began."""

    def __init__(self, environment: Mapping[str, object]) -> None:
        self.environment = dict(environment)
        self.bars: list[Bar] = []
        self.pauses: list[Pauses] = []
        self.memory: list[Memory] = []

    def pauses_of(self, backend: str, variant: str, n: int) -> Pauses:
        """The row of that name, made if it is new."""
        for row in self.pauses:
            if (row.backend, row.variant, row.n) == (backend, variant, n):
                return row
        self.pauses.append(Pauses(backend, variant, n))
        return self.pauses[-1]

    def bar(self, backend: str, variant: str, n: int) -> Bar:
        """The bar of that name, made if it is new."""
        found = self.find(backend, variant, n)
        if found is None:
            found = Bar(backend, variant, n)
            self.bars.append(found)
        return found

    def find(self, backend: str, variant: str, n: int) -> Bar | None:
        """The bar of that name, if there is one."""
        return next((b for b in self.bars if (b.backend, b.variant, b.n) == (backend, variant, n)), None)

    def sizes(self) -> list[int]:
        """Every N, ascending."""
        return sorted({bar.n for bar in self.bars})

    def write(self, path: Path) -> None:
        """Write the raw figures as JSON."""
        content = {
            "bars": [asdict(bar) for bar in self.bars],
            "pauses": [asdict(row) for row in self.pauses],
            "memory": [one._asdict() for one in self.memory],
            "environment": self.environment,
        }
        path.write_text(json.dumps(_rounded(content), indent=1) + "\n")

    @staticmethod
    def read(path: Path) -> Breakdown:
        """Read what `write` wrote."""
        content = json.loads(path.read_text())
        result = Breakdown(content["environment"])
        result.bars = [Bar(**bar) for bar in content["bars"]]
        result.pauses = [Pauses(**row) for row in content["pauses"]]
        result.memory = [Memory(**one) for one in content["memory"]]
        return result


def _rounded(value: Any) -> Any:
    """Seconds to four digits, MiB to whole ones."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 4 if value < 100 else None) if isinstance(value, float) else value


def _latest(times: Iterable[float | None]) -> float | None:
    return max((at for at in times if at is not None), default=None)


def _earliest(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)
