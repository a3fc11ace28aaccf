"""Quantities in Kubernetes' notation: ``100m``, ``1.5``, ``2e3``, ``64Mi``. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[MGTPE]|[KMGTPE]i)?")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def parse(quantity: object) -> Decimal | None:
    """A quantity as a number; None if it is invalid, or greater than a ``Decimal`` can be (``1e1000000``)."""
    # Not kubernetes.utils.quantity: that takes 1K for a quantity, which the API server rejects.
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None or found[1].count(".") > 1 or not found[1].strip("+-."):
        return None
    suffix = found[2] or ""
    try:
        number = Decimal(found[1])
        if suffix in _BINARY:
            return number * Decimal(1024) ** (_BINARY.index(suffix) + 1)
        return number * Decimal(1000) ** (_DECIMAL.index(suffix) - _DECIMAL.index(""))
    except ArithmeticError:
        return None
