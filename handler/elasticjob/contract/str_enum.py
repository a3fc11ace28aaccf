"""The base of the enums whose values are in records, statuses and messages."""

from __future__ import annotations

import enum


class StrEnum(str, enum.Enum):
    """An enum that prints as its value, as ``enum.StrEnum`` of Python 3.11; the handler runs on 3.10, too."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)
