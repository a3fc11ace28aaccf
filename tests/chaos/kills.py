"""What a series of kills has cost: steps redone, reads of the storage, the curve of the losses. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

WORKER, AGENT, LEADER, NODE = "worker", "agent", "rank 0's agent", "node"
KINDS = (WORKER, AGENT, LEADER, NODE)
SIZE = "change of size"
"""Not a kill: what a series does between kills."""
TOLERANCE = 1e-5
"""Of a loss: the order of a sum differs between world sizes."""
WELL_STEPS = (2, 9)
"""How many steps a round has made when it is disturbed, at least and at most."""
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """A kill of this ``rank``, when a round of so many pods has made so many steps."""

    kind: str
    pods: int
    rank: int
    steps: int


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
    skipped: int = 0
    """How many saves before it were skipped, since the last that was not."""
    copying: bool = False
    """Whether it came between a step and its save, which would have been skipped, too."""
    seconds: float = 0.0
    """Until all ranks had trained a step of the next round."""

    @property
    def redone(self) -> int:
        """Steps that were trained again."""
        return sum(self.each)


def plan(seed: int, kills: int, sizes: Sequence[int], change_every: int) -> list[Planned]:
    """Kinds from a shuffled deck, each once before any comes again; another size after each ``change_every``
    kills, in turns; any rank, after any number of steps."""
    random, deck, planned = Random(seed), list[str](), list[Planned]()
    for number in range(kills):
        if not deck:
            deck = random.sample(KINDS, len(KINDS))
        kind, pods = deck.pop(), sizes[number // change_every % len(sizes)]
        rank = 0 if kind == LEADER else random.randrange(pods)
        planned.append(Planned(kind, pods, rank, random.randint(*WELL_STEPS)))
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


def skipped(lines: Iterable[Line], number: int) -> int:
    """How many saves to memory the round had skipped in a row when it ended. Each step's line has how many
    it had by then."""
    counts = {line["step"]: line["skipped"] for line in lines if line["round"] == number and "step" in line}
    found = [counts[step] for step in sorted(counts)]
    in_a_row = 0
    while len(found) > in_a_row + 1 and found[-1 - in_a_row] > found[-2 - in_a_row]:
        in_a_row += 1
    return in_a_row


def copying(lines: Iterable[Line], number: int) -> bool:
    """Whether copies of the save before were under way when the round had trained its last step, so that it
    would have skipped the save of this one. That is not known if a rank was killed before it could say it."""
    own = [line for line in lines if line["round"] == number and "step" in line]
    ends = [line for line in own if line["step"] == reached(own)]
    return any(line["copying"] for line in ends) or len(ends) < len({line["rank"] for line in own})


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
    """What a kill of one pod must not cost, in sentences: more than the one step that was not saved yet, and
    those of which the save was skipped, or would have been; a read of the storage. A planned change must cost
    no step."""
    wrong = []
    for number, kill in enumerate(kills, 1):
        what = f"kill {number} ({kill.kind}, {kill.pods} pods, round {kill.number})"
        allowed = 0 if kill.kind == SIZE else 1 + kill.skipped + kill.copying
        if kill.redone > allowed:
            wrong.append(f"{what}: {kill.redone} steps were redone, expected at most {allowed}")
        if any(steps < 0 for steps in kill.each):
            wrong.append(f"{what}: a round has gone on from a step that nobody has trained")
        if kill.kind != SIZE and (
            elsewhere := [source for source in kill.sources if source not in ("Memory", "Peer")]
        ):
            wrong.append(f"{what}: resumed from {', '.join(elsewhere)}, though a copy was left")
    return wrong


def told(kills: Sequence[Kill], largest: float) -> str:
    """The result of a series, for people."""
    sources = Counter(source for kill in kills for source in kill.sources)
    changes, kills = (
        [kill for kill in kills if kill.kind == SIZE],
        [kill for kill in kills if kill.kind != SIZE],
    )
    seconds = {kind: [kill.seconds for kill in kills if kill.kind == kind] for kind in KINDS}
    pods, redone = Counter(kill.pods for kill in kills), Counter(kill.redone for kill in kills)
    return "\n".join(
        [
            f"{len(kills)} kills: "
            + ", ".join(f"{len(found)} {kind}" for kind, found in seconds.items() if found),
            "seconds until all train again, median: "
            + ", ".join(f"{kind} {median(found):.1f}" for kind, found in seconds.items() if found),
            "pods: " + ", ".join(f"{count} kills of {number}" for number, count in sorted(pods.items())),
            "steps redone: " + ", ".join(f"{steps} in {count}" for steps, count in sorted(redone.items())),
            f"saves skipped before a kill: {sum(kill.skipped for kill in kills)}",
            f"killed while the save before the last step was copied: {sum(kill.copying for kill in kills)}",
            f"{len(changes)} changes of size, steps redone: {sum(change.redone for change in changes)}",
            "resumed from: " + (", ".join(f"{s} {n}" for s, n in sorted(sources.items())) or "nothing said"),
            f"reads of the storage: {sources['Storage']}",
            f"largest difference of a loss: {largest:.2g}",
        ]
    )
