"""Parts of a template or of another object to which a user may give any shape. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping; otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list; none if the value is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
