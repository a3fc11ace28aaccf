"""Removes advice that an earlier message has given already. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ADVICE = re.compile(r";? see its log \(for the exception's text here, decorate [^)]*\)")
"""What the operator and the handler say of each worker that has failed without a text."""


def once(texts: Sequence[str]) -> list[str]:
    """These texts; the advice stays where it comes first."""
    found, seen = [], False
    for text in texts:
        first = None if seen else _ADVICE.search(text)
        keep = first.end() if first else 0
        found.append(text[:keep] + _ADVICE.sub("", text[keep:]))
        seen = seen or first is not None
    return found
