"""Which checkpoints and claims of a folder may be removed: pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elasticjob.checkpoint.ownership import contenders
from elasticjob.checkpoint.records import Claim, Name, Token
from elasticjob.checkpoint.selection import last_list


def never_counts(
    found: Iterable[Name],
    complete: Collection[Name],
    claims: Iterable[Claim],
    token: Token,
    mine: Collection[int],
) -> list[Name]:
    """The checkpoints from which no round from ``token`` on can ever resume: those that were half-written
    when the last round began, and those that ``mine``, the job's own generations, have completed too late.

    Any process may remove them at any time: a later claim can only exclude more.
    """
    last = last_list(claims, token)
    if last is None:
        return []
    return sorted(
        name
        for name in found
        if name.token < last.token
        and name not in (last.complete or ())
        and (name not in complete or name.token.generation in mine)
    )


def surplus(counts: Iterable[Name], mine: Collection[int], newest: Name, keep: int) -> list[Name]:
    """The checkpoints that count and may be removed, if ``newest`` is known to be good: all older ones of
    ``mine``, the job's own generations, except the ``keep`` newest."""
    counts = sorted((name for name in counts if name.token.generation in mine), reverse=True)
    kept = {*counts[:keep], newest}
    return sorted(name for name in counts if name < newest and name not in kept)


def surplus_claims(claims: Iterable[Claim], mine: Claim, found: Iterable[Name]) -> list[Claim]:
    """The claims that nothing depends on. As long as an earlier generation has checkpoints, its last claim
    says whose they are."""
    claims = list(claims)
    generations = {name.token.generation for name in found}
    last: dict[int, Claim] = {}
    for claim in sorted(claims, key=lambda claim: (claim.complete is not None, claim.token)):
        if claim.token.generation in generations and claim.token.generation < mine.token.generation:
            last[claim.token.generation] = claim
    withdrawn = contenders(claims, mine)
    return [
        claim
        for claim in claims
        if claim.file != mine.file
        and (claim.token < mine.token or claim in withdrawn)
        and claim != last.get(claim.token.generation)
    ]
