"""Ranks as text: ``0-17,20``. Even the loss of most of a large round fits into a few kilobytes."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_MEMBERS = 5_000
"""The most members that a round may have: the schema's maximum of ``replicas``."""

_TEXT = re.compile(r"(?:[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*)?")


def dump_ranks(ranks: Iterable[int]) -> str:
    """The ranks in ascending order, neighbours as ranges."""
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks that ``dump_ranks`` has written. Raises ValueError for any other text."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError("not ranges of ranks")
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not (ranks[-1] if ranks else -1) < low <= high < MAX_MEMBERS:
            raise ValueError(f"ranks must ascend from 0 to {MAX_MEMBERS - 1}")
        ranks.extend(range(low, high + 1))
    return tuple(ranks)
