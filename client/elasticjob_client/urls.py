"""URLs as they are shown to people."""

from __future__ import annotations


def without_user(url: str) -> str:
    """Without user name and password, also of a URL that is not well formed."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
