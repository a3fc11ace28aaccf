"""Numbers that are written in text."""

from __future__ import annotations

_MOST = 18
"""Digits that any field can hold; of thousands, ``int`` raises."""


def whole(text: str) -> int | None:
    """The number that the text is, in digits; ``isdigit`` also takes what ``int`` does not, such as "²"."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST else None
