"""Ranks as text: ``0-17,20``. Even the loss of most of a large round fits into a few kilobytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

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


class Ranks(Sequence[int]):
    """Ranks as their text. As numbers, ten bytes of a Lease would be a hundred kilobytes in who keeps it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[int]:
        for one in self._ranges():
            yield from one

    def __len__(self) -> int:
        return sum(map(len, self._ranges()))

    def _ranges(self) -> list[range]:
        """What the text says, neighbours joined."""
        found: list[range] = []
        for part in self._text.split(",") if self._text else ():
            first, _, last = part.partition("-")
            low, beyond = int(first), int(last or first) + 1
            if found and found[-1].stop == low:
                low = found.pop().start
            found.append(range(low, beyond))
        return found

    def __bool__(self) -> bool:
        return bool(self._text)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ranks):
            return self._ranges() == other._ranges()  # thousands of ranks of a stranger's are compared
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Ranks({self._text!r})"


def parse_ranks(text: str) -> Ranks:
    """The ranks that ``dump_ranks`` has written. Raises ValueError for any other text."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError("not ranges of ranks")
    highest = -1
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not highest < low <= high < MAX_MEMBERS:
            raise ValueError(f"ranks must ascend from 0 to {MAX_MEMBERS - 1}")
        highest = high
    return Ranks(text)
