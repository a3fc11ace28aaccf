"""Reads parts of raw objects of the API server. Nothing here raises for any content."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

from elasticjob.contract.text import one_line

_MAX_TEXT = 1_024
"""Characters kept of any message that another component wrote."""
MAX_KEPT = 1_024
"""Characters of an annotation that are kept to know it again; of a longer one a digest is."""


def mapping(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = fields.get(key)
    return value if isinstance(value, dict) else {}


def mappings(fields: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = fields.get(key)
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    return one_line(str(value or ""), _MAX_TEXT)


def kept(text: str | None, longest: int = MAX_KEPT) -> str | None:
    """What is kept of an annotation: a pod may write 256 KiB of them, and a cluster has many pods."""
    if text is None or len(text) <= longest:
        return text
    return f"{len(text)} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def time_of(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def version_of(meta: Mapping[str, Any]) -> int:
    """The resourceVersion as a number; 0 if it is invalid."""
    text = str(meta.get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdigit() else 0


def controller_of(meta: Mapping[str, Any]) -> str:
    """UID of the controlling owner, or empty."""
    owners = (str(o.get("uid", "")) for o in mappings(meta, "ownerReferences") if o.get("controller"))
    return kept(next(owners, "")) or ""


def first_owner_of(meta: Mapping[str, Any]) -> str:
    """UID of the first owner, or empty."""
    return kept(next((str(o.get("uid", "")) for o in mappings(meta, "ownerReferences")), "")) or ""
