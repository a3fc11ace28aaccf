"""How a field of the status is written (``status_json``)."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def always(default: Any) -> Any:
    """A field that is written even when it has its default."""
    return field(default=default, metadata={"always": True})


def named(name: str) -> Any:
    """A required field whose name in JSON is no name in Python."""
    return field(metadata={"name": name})


def internal(default: Any) -> Any:
    """A field for the operator alone: in the JSON it stands below ``status.internal``."""
    return field(default=default, metadata={"internal": True})
