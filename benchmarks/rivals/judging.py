"""What a training under faults has cost: minutes, steps redone, seconds lost by each fault. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

FINISHED = "finished"


@dataclass(frozen=True)
class Stamp:
    """A rank of this process has trained a step. ``at``: seconds of the machine's monotonic clock."""

    pod: int
    pid: int
    rank: int
    step: int
    at: float
    loss: float


@dataclass(frozen=True)
class Struck:
    """A fault that has happened, when the newest step was ``step``."""

    kind: str
    at: float
    step: int
    note: str = ""


@dataclass(frozen=True)
class Cost:
    """What a fault has cost. ``new``: seconds until the next step that no rank had trained before. ``lost``:
    seconds until the next fault or the end, less what as many new steps take undisturbed. None: training did
    not get so far."""

    kind: str
    new: float | None
    lost: float | None
    note: str = ""


@dataclass
class Result:
    """How one system has fared. ``curve``: seconds from the start to the first time that each step was
    trained, from step 1 on."""

    system: str
    version: str
    flags: str
    ended: str
    minutes: float | None = None
    reached: int = 0
    redone: int = 0
    starts: int = 0
    pace: float | None = None
    loss: float | None = None
    faults: list[Cost] = field(default_factory=list)
    curve: list[float | None] = field(default_factory=list)

    @staticmethod
    def parse(content: Mapping[str, Any]) -> Result:
        """From JSON."""
        faults = [Cost(**cost) for cost in content.get("faults", ())]
        return Result(**{**content, "faults": faults})


def read(pod: int, pid: int, text: str) -> list[Stamp]:
    """The whole lines of a process's file."""
    whole, _, _ = text.rpartition("\n")
    return [Stamp(pod, pid, **json.loads(line)) for line in whole.splitlines()]


def first_trained(stamps: Iterable[Stamp]) -> dict[int, float]:
    """When a step was trained for the first time: a rank that has trained it has met all the others."""
    found: dict[int, float] = {}
    for stamp in stamps:
        found[stamp.step] = min(stamp.at, found.get(stamp.step, stamp.at))
    return found


def redone(stamps: Iterable[Stamp]) -> int:
    """How often steps were trained again. A step was trained as often as the rank that says so most often."""
    times = Counter((stamp.step, stamp.rank) for stamp in stamps)
    most: dict[int, int] = {}
    for (step, _), count in times.items():
        most[step] = max(count, most.get(step, 0))
    return sum(count - 1 for count in most.values())


def newest_ranks(stamps: Sequence[Stamp]) -> dict[int, Stamp]:
    """By rank, who has trained one of the two newest steps last: some have not stamped the newest yet."""
    newest = max((stamp.step for stamp in stamps), default=0)
    latest = sorted((stamp for stamp in stamps if stamp.step >= newest - 1), key=lambda stamp: stamp.at)
    return {stamp.rank: stamp for stamp in latest}


def pace(trained: Mapping[int, float], until: float) -> float | None:
    """Seconds that a step takes before this moment; None if fewer than two were trained."""
    moments = sorted(at for at in trained.values() if at <= until)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    return median(gaps) if gaps else None


def costs(trained: Mapping[int, float], struck: Sequence[Struck], steps: int) -> list[Cost]:
    """What each fault has cost, in their order; ``steps``: the number of the last step."""
    usual = pace(trained, struck[0].at) if struck else None
    ends = [(one.at, one.step) for one in struck[1:]]
    if steps in trained:
        ends.append((trained[steps], steps))
    found = []
    for number, one in enumerate(struck):
        later = [at for step, at in trained.items() if step > one.step and at > one.at]
        lost = None
        if number < len(ends) and usual is not None:
            at, step = ends[number]
            lost = at - one.at - usual * (step - one.step)
        found.append(Cost(one.kind, min(later) - one.at if later else None, lost, one.note))
    return found


def judge(
    result: Result, stamps: Sequence[Stamp], struck: Sequence[Struck], *, began: float, steps: int
) -> None:
    """Fill in all figures of a result."""
    trained = first_trained(stamps)
    result.reached = max(trained, default=0)
    result.redone = redone(stamps)
    result.pace = pace(trained, struck[0].at if struck else float("inf"))
    result.faults = costs(trained, struck, steps)
    result.curve = [
        round(trained[step] - began, 3) if step in trained else None for step in range(1, result.reached + 1)
    ]
    if steps in trained:
        result.minutes = (trained[steps] - began) / 60
        result.loss = next(stamp.loss for stamp in stamps if stamp.step == steps)
