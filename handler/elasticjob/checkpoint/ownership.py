"""Which job and which round hold a folder of checkpoints: pure decisions on its claims.

The generation counts the jobs that have used the folder, so that a job that is deleted and applied again,
whose rounds start at 1, stands above its predecessor. It stands above every claim and every checkpoint that
is there, so that no checkpoint of another job has the token of a round that begins.

The claim of the highest token says which job *holds* the folder. Its rank 0 renews it. Another job may begin
when the claim says that it was given up (``ended``, which does not say that the job has ended), when its
process has ended and was on the newcomer's machine, in the same PID namespace, or when the newcomer has
watched it for a while and it was not renewed. Two jobs that begin at the same moment take the same
generation; at least one sees the other's claim, and withdraws.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob.checkpoint.errors import StaleRoundError
from elasticjob.checkpoint.records import Claim, Holder, Name, Token


def begin(claims: Iterable[Claim], found: Iterable[Name], me: Holder, round_number: int | None) -> Token:
    """The token of round ``round_number`` of ``me``, given the claims and checkpoints of the folder.

    A job stays in its generation until another job has used the folder; then it takes a new one. Without a
    number, outside of an ElasticJob, each start stands above all before it.
    Raises StaleRoundError if a later round of the job has begun here.
    """
    claims = list(claims)
    highest = max(
        (*(claim.token.generation for claim in claims), *(name.token.generation for name in found)), default=0
    )
    if round_number is None:
        return Token(highest + 1, 0)
    mine = [claim for claim in claims if claim.holder.job == me.job]
    newest = max(mine, key=lambda claim: claim.token.round, default=None)
    if newest and newest.token.round > round_number:
        raise StaleRoundError(
            f"{newest.round} has begun here, and this process belongs to round {round_number}, which is over."
            " If that is another job with the same id, give this one a directory of its own."
        )
    owned = any(claim.token.generation == highest and claim.complete is not None for claim in mine)
    return Token(highest if owned else highest + 1, round_number)


def rival(claims: Iterable[Claim], token: Token, me: Holder) -> Claim | None:
    """The claim of the last user of the folder, if that is another job or run and has not ended."""
    claims = list(claims)
    if any(claim.token.generation >= token.generation for claim in claims):
        return None  # this job's own generation, or a contender's
    owner = max(
        claims,
        key=lambda claim: (claim.token.generation, claim.complete is not None, claim.token.round),
        default=None,
    )
    rounds = (
        claim
        for claim in claims
        if owner
        and claim.token.generation == owner.token.generation
        and claim.holder.owner == owner.holder.owner
    )
    last = max(rounds, key=lambda claim: claim.token, default=None)  # it may have no list yet
    if last is None or last.ended:
        return None
    if me.job or last.holder.job:
        return None if me.job == last.holder.job else last
    same = (me.run and me.run == last.holder.run) or (me.process and me.process == last.holder.process)
    return None if same else last


def contenders(claims: Iterable[Claim], mine: Claim) -> list[Claim]:
    """The claims of other owners that begin in the same generation."""
    return [
        claim
        for claim in claims
        if claim.token.generation == mine.token.generation and claim.holder.owner != mine.holder.owner
    ]


def superseded_by(claims: Iterable[Claim], mine: Claim) -> Claim | None:
    """The claim of a later round than ``mine``, if there is one: its holder must not complete anything.

    Another job's claim in the same generation is about to be withdrawn.
    """
    return max(
        (
            claim
            for claim in claims
            if claim.token > mine.token
            and (claim.token.generation > mine.token.generation or claim.holder.owner == mine.holder.owner)
        ),
        key=lambda claim: claim.token,
        default=None,
    )


def own(claims: Iterable[Claim], me: Holder) -> frozenset[int]:
    """The generations in which ``me`` has written."""
    return frozenset(
        claim.token.generation
        for claim in claims
        if claim.holder.job == me.job and claim.complete is not None
    )
