"""URLs as they are shown to people."""

from __future__ import annotations


def without_user(url: str) -> str:
    """The URL without user name and password, even if it is not well formed."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
