"""Who is in the next round, in which order, and whether to wait for somebody. Pure.

It lives with the handler, not with the operator, because a participant may one day run it where no
operator is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_REASONS = 3
"""How many different reasons a sentence gives for a wait."""


@dataclass(frozen=True)
class Candidate:
    """A live participant that has announced itself and may be a member.

    ``last_rank`` is its rank in the round before, None for a newcomer; ``slot`` orders newcomers
    (those without one come last, by pod name). ``may_lead`` is False for one that members could not
    reach as leader.
    """

    id: str
    pod: str
    slot: int | None = None
    last_rank: int | None = None
    may_lead: bool = True


@dataclass(frozen=True)
class Awaited:
    """Somebody who is on the way. ``left`` are the seconds for which it is still waited for; ``patience``
    those for which its seat is kept from a newcomer that is there already."""

    pod: str
    left: float
    why: str
    patience: float = 0.0


@dataclass(frozen=True)
class Form:
    """Publish a round with these members, in rank order."""

    members: tuple[Candidate, ...]


@dataclass(frozen=True)
class Wait:
    """Do not publish yet. ``seconds`` until the answer changes by itself; None: only an event changes it."""

    seconds: float | None
    why: str


def decide(
    candidates: Sequence[Candidate],
    awaited: Iterable[Awaited],
    minimum: int,
    replicas: int,
) -> Form | Wait:
    """Complete the round as soon as everyone who can be expected has joined, up to ``replicas``.

    Below ``minimum`` it waits without limit. The answer carries its sentence. A spare that is quicker than a
    member of the round before does not take its seat at once.
    """
    joined = len(candidates)
    if joined >= replicas:
        seats = seat(candidates, replicas)
        patience = [a for a in awaited if a.patience > 0]
        if patience and any(c.last_rank is None for c in seats):
            return Wait(
                min(a.patience for a in patience),
                f"{joined} have joined, {replicas} are wanted; for a moment no spare takes the place of "
                f"{_names(patience)}",
            )
        return Form(seats)
    outstanding = sorted((a for a in awaited if a.left > 0), key=lambda a: a.left)
    if joined >= minimum and not outstanding:
        return Form(seat(candidates, replicas))
    have = f"{joined} of {replicas} have joined"
    if joined >= minimum:
        return Wait(
            outstanding[0].left,
            f"{have}; waiting for {reasons(outstanding)}; "
            f"will start with {joined} in {outstanding[-1].left:.0f} s",
        )
    need = f"{have}, {minimum} are needed"
    if outstanding:
        return Wait(outstanding[0].left, f"{need}; waiting for {reasons(outstanding)}")
    return Wait(None, f"{need}; nobody else is on the way")


def seat(candidates: Iterable[Candidate], size: int) -> tuple[Candidate, ...]:
    """Choose at most ``size`` candidates and put them in rank order.

    Members of the round before come first, lowest rank first, then newcomers by slot. A survivor keeps
    its rank while the size allows it; newcomers fill the vacated ranks, lowest first; what stays vacant
    closes up, so that the order stays when a round shrinks. One that may not lead swaps places with
    the first that may, where there is one.
    """
    ordered = sorted(candidates, key=_preference)[:size]
    survivors = {c.last_rank: c for c in ordered if c.last_rank is not None}
    newcomers = [c for c in ordered if c.last_rank is None]
    seats: list[Candidate] = []
    for rank in range(max(survivors, default=-1) + 1):
        if rank in survivors:
            seats.append(survivors[rank])
        elif newcomers:
            seats.append(newcomers.pop(0))
    seats.extend(newcomers)
    if seats and not seats[0].may_lead:
        other = next((i for i, c in enumerate(seats) if c.may_lead), None)
        if other is not None:
            seats[0], seats[other] = seats[other], seats[0]
    return tuple(seats)


def _preference(c: Candidate) -> tuple[bool, int, bool, int, str]:
    return (c.last_rank is None, c.last_rank or 0, c.slot is None, c.slot or 0, c.pod)


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: three of them, and how many more there are."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _names(awaited: Sequence[Awaited]) -> str:
    return listed([a.pod for a in awaited])


def reasons(awaited: Sequence[Awaited]) -> str:
    """Those who are awaited, each with its reason: ``a, b (one reason) and c (another)``."""
    groups: dict[str, list[str]] = {}
    for one in awaited:
        groups.setdefault(one.why, []).append(one.pod)
    said = list(groups.items())[:_REASONS]
    more = len(awaited) - sum(len(names) for _, names in said)
    parts = [f"{listed(names)} ({why})" for why, names in said]
    return " and ".join(parts) + (f" and {more} more" if more else "")
