"""What the API server would refuse of a converted job, by the limits of the resource definition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROCESSES = ("auto", "gpu", "cpu", "xpu")
"""What nprocPerNode may be instead of a number."""
_SIZE = (1, 5000)
_SECONDS = 2**31 - 1
NUMBERS = {
    "replicas": _SIZE,
    "minReplicas": _SIZE,
    "maxReplicas": _SIZE,
    "activeDeadlineSeconds": (1, _SECONDS),
    "ttlSecondsAfterFinished": (0, _SECONDS),
}
RESTARTS = (0, 10_000)
_ORDERS = (("minReplicas", "replicas"), ("replicas", "maxReplicas"), ("minReplicas", "maxReplicas"))
"""The first of each pair is at most the second."""
POLICIES = ("Running", "All", "None")


def check(spec: Mapping[str, Any]) -> None:
    """Raises ValueError with all that would be refused."""
    if found := [*_outside(spec), *_in_disorder(spec)]:
        raise ValueError(f"the API server would refuse the ElasticJob: {'; '.join(found)}")


def _outside(spec: Mapping[str, Any]) -> list[str]:
    restarts = ((spec.get("failurePolicy") or {}).get("application") or {}).get("maxRestarts")
    values = [*((field, spec.get(field), limits) for field, limits in NUMBERS.items())]
    values.append(("failurePolicy.application.maxRestarts", restarts, RESTARTS))
    found = [
        f"{field} is {value}: expected {least} to {most}"
        for field, value, (least, most) in values
        if value is not None and not least <= value <= most
    ]
    processes = spec.get("nprocPerNode")
    if processes not in (None, *PROCESSES) and not (isinstance(processes, int) and 1 <= processes <= 99_999):
        found.append(f"nprocPerNode is {processes!r}: expected 1 to 99999, or one of {', '.join(PROCESSES)}")
    if (policy := spec.get("cleanPodPolicy")) not in (None, *POLICIES):
        found.append(f"cleanPodPolicy is {policy!r}: expected one of {', '.join(POLICIES)}")
    return found


def _in_disorder(spec: Mapping[str, Any]) -> list[str]:
    return [
        f"{low} is {spec[low]} and {high} is {spec[high]}: expected {high} to be at least {low}"
        for low, high in _ORDERS
        if spec.get(low) is not None and spec.get(high) is not None and spec[low] > spec[high]
    ]
