"""What the handler's init container asks for: as little as it can, and never more than the one that trains.

A pod is given the larger of what its init containers and its containers ask for, so that more than theirs
would push up a small pod. What the training container leaves out, this one leaves out, too: a pod of class
BestEffort or Guaranteed remains one, and the defaults of a LimitRange, by which a quota lets the one in, let
in the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

MOST = {"cpu": "250m", "memory": "64Mi"}

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[MGTPE]|[KMGTPE]i)?")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def modest(container: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """``resources`` of an init container beside one that trains; equal requests and limits stay equal."""
    given = container.get("resources") or {}
    result = {}
    for kind in ("requests", "limits"):
        theirs = given.get(kind) or {}
        asked = {name: _less(most, theirs[name]) for name, most in MOST.items() if name in theirs}
        if asked:
            result[kind] = asked
    return result


def parse(quantity: object) -> Decimal | None:
    """A quantity in Kubernetes' notation (``100m``, ``1.5``, ``2e3``, ``64Mi``) as a number; None for what is
    none."""
    # Not kubernetes.utils.quantity: that takes 1K for a quantity, which the API server rejects.
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None or found[1].count(".") > 1 or not found[1].strip("+-."):
        return None
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix in _BINARY:
        return number * Decimal(1024) ** (_BINARY.index(suffix) + 1)
    return number * Decimal(1000) ** (_DECIMAL.index(suffix) - _DECIMAL.index(""))


def _less(most: str, theirs: object) -> str:
    """The smaller of the two, as it is written. What can't be read the API server rejects."""
    limit, asked = parse(most), parse(theirs)
    return str(theirs) if asked is not None and limit is not None and asked < limit else most
