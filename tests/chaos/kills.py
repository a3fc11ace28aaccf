"""What a series of kills has cost: steps redone, reads of the storage, the curve of the losses. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

WORKER, AGENT, LEADER, NODE = "worker", "agent", "rank 0's agent", "node"
KINDS = (WORKER, AGENT, LEADER, NODE)
TOLERANCE = 1e-3
"""Of a loss, as in ``tests.chaos.training``: the order of a sum differs between world sizes."""
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """A kill, and how many pods the job has then."""

    kind: str
    pods: int


@dataclass(frozen=True)
class Kill:
    """One that was done in round ``number``. ``sources``: what the rounds after it have resumed from, as the
    status says."""

    kind: str
    pods: int
    number: int
    each: tuple[int, ...]
    """How many steps each round after it has trained again: there are two rounds if the job was smaller until
    a replacement had come."""
    sources: tuple[str, ...]

    @property
    def redone(self) -> int:
        """Steps that were trained again."""
        return sum(self.each)


def plan(seed: int, kills: int, sizes: Sequence[int], change_every: int) -> list[Planned]:
    """Kinds from a shuffled deck, each once before any comes again; another size after each ``change_every``
    kills, in turns."""
    random, deck, planned = Random(seed), list[str](), list[Planned]()
    for number in range(kills):
        if not deck:
            deck = random.sample(KINDS, len(KINDS))
        planned.append(Planned(deck.pop(), sizes[number // change_every % len(sizes)]))
    return planned


def read(text: str) -> list[Line]:
    """The whole lines of a step log."""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def reached(lines: Iterable[Line]) -> int:
    """The last step that a rank has trained."""
    return max((line["step"] for line in lines if "step" in line), default=0)


def goes_on(lines: Iterable[Line], after: int, pods: int) -> bool:
    """Whether the newest round is later than ``after``, and this many ranks have trained a step of it."""
    steps = [line for line in lines if "step" in line]
    newest = max((line["round"] for line in steps), default=0)
    return newest > after and len({line["rank"] for line in steps if line["round"] == newest}) >= pods


def redone(lines: Sequence[Line], after: int) -> tuple[int, ...]:
    """How many steps each round after round ``after`` has trained again, if it has trained any. Raises
    ValueError if its ranks have resumed from different steps."""
    found = []
    for number in sorted({line["round"] for line in lines if line["round"] > after and "step" in line}):
        began = {
            line["rank"]: line["resumed"] for line in lines if line["round"] == number and "resumed" in line
        }
        if len({*began.values()}) != 1:
            raise ValueError(f"the ranks of round {number} have resumed from {began}, expected one step")
        before = reached(line for line in lines if line["round"] < number)
        found.append(before - next(iter(began.values())))
    return tuple(found)


def curve(lines: Iterable[Line]) -> dict[int, Line]:
    """What counts of each step: what the last round that has trained it says."""
    found: dict[int, Line] = {}
    for line in lines:
        if "step" in line and (line["step"] not in found or line["round"] >= found[line["step"]]["round"]):
            found[line["step"]] = line
    return found


def difference(disturbed: Iterable[Line], undisturbed: Iterable[Line]) -> tuple[float, list[str]]:
    """The largest difference of a step's loss, and what is wrong, in sentences."""
    ours, theirs = curve(disturbed), curve(undisturbed)
    if missing := sorted(set(range(1, max(ours, default=0) + 1)) - ours.keys()):
        return 0.0, [f"nobody has trained the steps {missing[:5]}"]
    if not ours or ours.keys() - theirs.keys():
        return 0.0, [f"{len(ours)} steps were trained, and {len(theirs)} in the undisturbed run"]
    largest = max(abs(line["loss"] - theirs[step]["loss"]) for step, line in ours.items())
    wrong = [
        f"step {step} had the samples {line['ids']}, expected {theirs[step]['ids']}"
        for step, line in ours.items()
        if line["ids"] != theirs[step]["ids"]
    ][:1]
    if largest > TOLERANCE:
        wrong.append(f"a loss differs by {largest:.2g}, expected at most {TOLERANCE:g}")
    return largest, wrong


def violations(kills: Iterable[Kill]) -> list[str]:
    """What a kill of one pod must not cost, in sentences: more than one step, or a read of the storage."""
    wrong = []
    for number, kill in enumerate(kills, 1):
        what = f"kill {number} ({kill.kind}, {kill.pods} pods, round {kill.number})"
        if kill.redone > 1:
            wrong.append(f"{what}: {kill.redone} steps were redone")
        if any(steps < 0 for steps in kill.each):
            wrong.append(f"{what}: a round has gone on from a step that nobody has trained")
        if elsewhere := [source for source in kill.sources if source not in ("Memory", "Peer")]:
            wrong.append(f"{what}: resumed from {', '.join(elsewhere)}, though a copy was left")
    return wrong


def told(kills: Sequence[Kill], largest: float) -> str:
    """The result of a series, for people."""
    kinds, pods = Counter(kill.kind for kill in kills), Counter(kill.pods for kill in kills)
    redone, sources = Counter(kill.redone for kill in kills), Counter(s for k in kills for s in k.sources)
    return "\n".join(
        [
            f"{len(kills)} kills: " + ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind]),
            "pods: " + ", ".join(f"{count} kills of {number}" for number, count in sorted(pods.items())),
            "steps redone: " + ", ".join(f"{steps} in {count}" for steps, count in sorted(redone.items())),
            "resumed from: " + (", ".join(f"{s} {n}" for s, n in sorted(sources.items())) or "nothing said"),
            f"reads of the storage: {sources['Storage']}",
            f"largest difference of a loss: {largest:.2g}",
        ]
    )
