"""Text that a manifest can hold. Python takes bytes that are not UTF-8 too, as surrogates."""

from __future__ import annotations


def is_utf8(text: str) -> bool:
    """Whether it has no surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
