"""Which sizes a round may have. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The numbers of members that a round may have: ``listed`` ones, in ascending order, or without those all
    multiples of ``multiple``. By default any number."""

    listed: tuple[int, ...] = ()
    multiple: int = 1

    def floor(self, most: int) -> int:
        """The largest size of at most this many members; 0 if there is none."""
        if self.listed:
            return max((size for size in self.listed if size <= most), default=0)
        return max(0, most) // self.multiple * self.multiple

    def ceil(self, least: int) -> int:
        """The smallest size of at least this many members; ``least`` itself if none is as large."""
        if self.listed:
            return min((size for size in self.listed if size >= least), default=least)
        return -(-least // self.multiple) * self.multiple

    def between(self, below: int, most: int) -> list[int]:
        """The sizes above ``below`` and up to ``most``, in ascending order."""
        every: Iterable[int] = self.listed or range(self.ceil(below + 1), most + 1, self.multiple)
        return [size for size in every if below < size <= most]

    @property
    def words(self) -> str:
        """A clause for people: ``sizes are 2, 4, 8``; "" if a round may have any."""
        if self.listed:
            return f"sizes are {', '.join(map(str, self.listed))}"
        return f"sizes are multiples of {self.multiple}" if self.multiple > 1 else ""


ANY = Sizes()
"""Every number of members is allowed."""
