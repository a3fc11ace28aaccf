"""What the handler's init container asks for: as little as it can, and never more than the one that trains.

A pod is given the larger of what its init containers and its containers ask for, so that more than theirs
would push up a small pod. What the training container leaves out, this one leaves out, too: a pod of class
BestEffort or Guaranteed remains one, and the defaults of a LimitRange, by which a quota lets the one in, let
in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from elasticjob.contract.quantity import parse

ALL = ("cpu", "memory", "ephemeral-storage")
"""What a LimitRange may demand of every container."""
LEAST = {"cpu": Decimal("0.05"), "memory": Decimal(16 * 1024**2)}
MOST = {"cpu": "250m", "memory": "64Mi"}


def small_resources(container: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """``resources`` of an init container beside one that trains; equal requests and limits stay equal."""
    given = container.get("resources") or {}
    result = {}
    for kind in ("requests", "limits"):
        theirs = given.get(kind) or {}
        asked = {name: _less(most, theirs[name]) for name, most in MOST.items() if name in theirs}
        if asked:
            result[kind] = asked
    return _with_limits(result)


def same_resources(container: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What the one that trains has: for a namespace whose LimitRange refuses less. Not what is tried first: a
    kubelet that gives whole CPUs to containers would choose them for this one, and reuse them."""
    given = container.get("resources") or {}
    kept = {
        kind: {name: str(theirs[name]) for name in ALL if name in theirs}
        for kind in ("requests", "limits")
        if (theirs := given.get(kind) or {})
    }
    return {kind: asked for kind, asked in kept.items() if asked}


def _with_limits(asked: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Copy each request without a limit to the limits: otherwise a LimitRange may set a limit for larger
    containers, and reject the pod for the ratio of the two. Not for requests so small that nothing can run
    within them."""
    limits = dict(asked.get("limits", {}))
    for name, request in asked.get("requests", {}).items():
        number = parse(request)
        if name not in limits and number is not None and number >= LEAST[name]:
            limits[name] = request
    return {**asked, "limits": limits} if limits else asked


def _less(most: str, theirs: object) -> str:
    """The smaller of the two, as it is written. What can't be read the API server rejects."""
    limit, asked = parse(most), parse(theirs)
    return str(theirs) if asked is not None and limit is not None and asked < limit else most
