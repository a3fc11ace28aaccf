"""Which keys of a round's store are missing, in few calls where few are."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def missing_ranks(
    there: Callable[[list[str]], bool], keys: Sequence[str], most: int, first: int = 0
) -> list[int]:
    """The ranks whose key is missing, at least ``most`` of them if there are as many; ``keys`` are those of
    consecutive ranks from ``first`` on. ``there`` says whether all of some keys are in the store."""
    if there(list(keys)):
        return []
    if len(keys) == 1:
        return [first]
    half = len(keys) // 2
    found = missing_ranks(there, keys[:half], most, first)
    return found if len(found) >= most else found + missing_ranks(there, keys[half:], most, first + half)
