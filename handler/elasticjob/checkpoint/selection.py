"""Which checkpoints of a folder count, and from which a job resumes first: pure decisions.

A claim lists the checkpoints that were complete when its round began. From then on only those count of
earlier rounds: a checkpoint that a member of an earlier round completes later does not. That needs no lock
and no conditional write, only a store where a small file appears in one piece and is seen by the next reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elasticjob.checkpoint.records import Claim, Name, Token


def last_list(claims: Iterable[Claim], token: Token) -> Claim | None:
    """The newest claim, up to the round of ``token``, that lists the checkpoints that count."""
    known = [claim for claim in claims if claim.complete is not None and claim.token <= token]
    return max(known, key=lambda claim: claim.token, default=None)


def counting(complete: Iterable[Name], claims: Iterable[Claim], token: Token) -> list[Name]:
    """The complete checkpoints that count for the round of ``token``, newest first."""
    last = last_list(claims, token)
    return sorted(
        (
            name
            for name in complete
            if name.token <= token
            and (last is None or name.token >= last.token or name in (last.complete or ()))
        ),
        reverse=True,
    )


def own_first(names: Iterable[Name], mine: Collection[int]) -> list[Name]:
    """The checkpoints in the order in which to resume from them: those of other jobs come last."""
    return sorted(names, key=lambda name: (name.token.generation in mine, name), reverse=True)
