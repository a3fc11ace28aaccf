"""Which size the next round has, and whether to wait for more participants. Pure.

A round starts as soon as every participant that can be expected has joined, up to the desired size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elasticjob.contract.text import counted, listed
from elasticjob.rounds.ranks import Candidate, assign_ranks
from elasticjob.rounds.sizes import ANY, Sizes
from elasticjob.rounds.topology import Domains

_REASONS = 3
"""The most reasons that a sentence gives for a wait."""


@dataclass(frozen=True)
class Expected:
    """A participant that is on its way."""

    name: str
    wait_seconds: float
    """How much longer to wait for it; 0 or less: not at all."""
    why: str
    """Why it has not joined yet, in a sentence."""
    last_group_rank: int | None = None
    """Its rank in the round before; None for a newcomer."""
    rank_held_seconds: float = 0.0
    """How much longer neither a newcomer nor a member of a higher rank takes its place."""
    where: str = ""
    """Its node; "": not known."""
    domains: Domains = ()
    """As those of a candidate."""


@dataclass(frozen=True)
class FormRound:
    """Publish a round with these members, in rank order."""

    members: tuple[Candidate, ...]


@dataclass(frozen=True)
class Defer:
    """Do not publish yet."""

    seconds: float | None
    """How long until the answer changes by itself; None: only an event changes it."""
    why: str
    count: str = ""
    """How many have joined and how many are needed, if they are too few."""

    @property
    def sentence(self) -> str:
        """The reason, then the count."""
        return f"{self.why}; {self.count}" if self.count else self.why


def decide(
    candidates: Sequence[Candidate],
    expected: Iterable[Expected],
    minimum: int,
    replicas: int,
    sizes: Sizes = ANY,
) -> FormRound | Defer:
    """Complete the round as soon as every participant that can be expected has joined, up to ``replicas``.

    It has the largest of the ``sizes`` for which participants have joined, and waits only for those who make
    a larger one possible. Below ``minimum`` it waits without limit. The place of a member of the round before
    that is still on its way is kept for a while: neither a spare nor, if the round shrinks, a member of a
    higher rank takes it. ``replicas`` is one of the sizes.
    """
    expected = list(expected)
    joined, minimum = len(candidates), min(sizes.ceil(minimum), replicas)
    size = sizes.floor(min(joined, replicas))
    outstanding = sorted((e for e in expected if e.wait_seconds > 0), key=lambda e: e.wait_seconds)
    if size < minimum:
        count = f"{joined_of(joined, replicas)}, at least {minimum} required"
        if outstanding:
            return Defer(outstanding[0].wait_seconds, f"waiting for {reasons(outstanding)}", count)
        return Defer(None, f"no {'other ' * (joined > 0)}pod is starting", count)
    if sizes.floor(min(joined + len(outstanding), replicas)) > size:
        return Defer(
            outstanding[0].wait_seconds,
            f"waiting for {reasons(outstanding)}; the round starts with {size} of "
            f"{counted(replicas, 'replica')} in {outstanding[-1].wait_seconds:.0f} s",
        )
    held = _with_a_place(candidates, [e for e in expected if e.rank_held_seconds > 0], size)
    if held:
        return Defer(
            min(e.rank_held_seconds for e in held),
            f"enough replicas have joined; waiting briefly for {_names(held)} to rejoin with the "
            f"same group rank{'s' * (len(held) != 1)}",
        )
    return FormRound(assign_ranks(candidates, size))


def joined_of(joined: int, replicas: int) -> str:
    """How many have joined, in words: ``1 of 2 replicas has joined``."""
    return f"{joined} of {counted(replicas, 'replica')} {'has' if 1 in (joined, replicas) else 'have'} joined"


def _with_a_place(candidates: Iterable[Candidate], held: Iterable[Expected], size: int) -> list[Expected]:
    """The ``held`` ones that would be members if all of them joined now."""
    coming = {Candidate("", e.name, None, e.last_group_rank, True, e.domains): e for e in held}
    return [coming[c] for c in assign_ranks((*candidates, *coming), size) if c in coming]


def _names(expected: Sequence[Expected]) -> str:
    return listed([e.name for e in expected])


def reasons(expected: Sequence[Expected]) -> str:
    """The expected participants, each with its reason: ``a, b (one reason) and c (another)``."""
    groups: dict[str, list[str]] = {}
    for one in expected:
        why = f"{one.why} on {one.where}" if one.where else one.why
        groups.setdefault(why, []).append(one.name)
    shown = list(groups.items())[:_REASONS]
    more = len(expected) - sum(len(names) for _, names in shown)
    parts = [f"{listed(names)} ({why})" for why, names in shown]
    return " and ".join(parts) + (f" and {more} more" if more else "")
