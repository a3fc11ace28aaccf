"""Which candidates are the members of a round, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elasticjob.rounds.topology import Domains, Newcomers, arranged, kept


@dataclass(frozen=True)
class Candidate:
    """A live participant that has announced itself and may be a member."""

    id: str
    name: str
    slot: int | None = None
    """The order of newcomers; those without one come last, by name."""
    last_group_rank: int | None = None
    """Its rank in the round before; None for a newcomer."""
    may_lead: bool = True
    """False if members could not reach it as leader."""
    domains: Domains = ()
    """Where it is in the network, see ``topology``; (): not known."""


def assign_ranks(candidates: Iterable[Candidate], size: int) -> tuple[Candidate, ...]:
    """Choose at most ``size`` candidates and put them in rank order.

    Members of the round before come first, then newcomers. Where there are too many, the smallest domain is
    given up first, then the highest rank or slot. A survivor keeps its rank while the size allows it; each
    vacated rank, lowest first, is filled by the newcomer that is nearest to its neighbours; gaps that remain
    close, so that the order stays when a round shrinks. Newcomers alone are put in order by domain, then by
    slot. If the first may not lead, it swaps places with the first that may. If no chosen one may lead, the
    first of the others that may replaces the last.
    """
    by_preference = sorted(candidates, key=preference)
    survivors = [c for c in by_preference if c.last_group_rank is not None]
    ranked = _in_order(_kept(survivors, size), by_preference[len(survivors) :], size)
    if ranked and not any(c.may_lead for c in ranked):
        other = next((c for c in by_preference if c.may_lead), None)
        if other is not None:
            staying = [*sorted(ranked, key=preference)[:-1], other]
            survivors = [c for c in staying if c.last_group_rank is not None]
            ranked = _in_order(survivors, [c for c in staying if c.last_group_rank is None], size)
    leader = next((rank for rank, c in enumerate(ranked) if c.may_lead), 0)
    if leader and not survivors:
        return (*ranked[leader:], *ranked[:leader])  # the ring stays as it is
    if leader:
        ranked[0], ranked[leader] = ranked[leader], ranked[0]
    return tuple(ranked)


def _in_order(survivors: Sequence[Candidate], newcomers: Sequence[Candidate], size: int) -> list[Candidate]:
    if not survivors:
        return arranged((c.domains, c) for c in _kept(newcomers, size))
    at = {c.last_group_rank: c for c in survivors}
    free, coming = size - len(survivors), Newcomers((c.domains, c) for c in newcomers)
    end = max(rank for rank in at if rank is not None) + 1
    after: dict[int, Domains] = {end: survivors[0].domains}
    for rank in range(end - 1, -1, -1):
        after[rank] = at[rank].domains if rank in at else after[rank + 1]
    ranked: list[Candidate] = []
    for rank in range(end + free):
        before = ranked[-1] if ranked else survivors[-1]
        if rank in at:
            ranked.append(at[rank])
        elif free and coming:
            ranked.append(coming.take(before.domains, *([after[rank + 1]] if rank < end else [])))
            free -= 1
    return ranked


def _kept(candidates: Sequence[Candidate], size: int) -> list[Candidate]:
    return kept([(c.domains, c) for c in candidates], size)


def preference(c: Candidate) -> tuple[bool, int, bool, int, str]:
    """The order in which candidates become members: lowest rank first, then newcomers by slot."""
    return (c.last_group_rank is None, c.last_group_rank or 0, c.slot is None, c.slot or 0, c.name)
