"""The schedule of faults: the same for all systems, by steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WORKER = "worker killed"
AGENT = "agent killed"
LEADER = "rank 0's agent killed"
HOST = "coordinator's node killed"
ADDED = "pod added"
REMOVED = "pod removed"
KINDS = (WORKER, AGENT, LEADER, HOST, ADDED, REMOVED)
PUT_OFF = 6
"""How often the removal is put off, each time until after one more save."""


@dataclass(frozen=True)
class Fault:
    """What happens as soon as a rank has trained this step."""

    kind: str
    step: int


def schedule(steps: int) -> list[Fault]:
    """All kinds, with the same number of steps between them, in each case in the middle between two saves.
    Raises ValueError if there are too few steps."""
    every = saved_every(steps)
    return [Fault(kind, 2 * every * number + every // 2) for number, kind in enumerate(KINDS, 1)]


def put_off(fault: Fault, steps: int) -> Fault | None:
    """The removal of a pod that has not trained yet, one save later: it would cost nothing now, nor would the
    addition. None if it was put off often enough: a system may never let the pod train."""
    every = saved_every(steps)
    later = Fault(fault.kind, fault.step + every)
    return later if later.step <= schedule(steps)[-1].step + PUT_OFF * every else None


def saved_every(steps: int) -> int:
    """How many steps lie between two saves to storage: there are two saves between two faults, and one each
    time that the removal is put off. Raises ValueError if there are too few steps."""
    saves = 2 * (len(KINDS) + 1) + PUT_OFF
    if steps < 2 * saves:
        raise ValueError(f"{steps} steps, expected at least {2 * saves}")
    return steps // saves


def victim(kind: str, ranks: Mapping[int, int], host: int) -> int:
    """The pod that a fault hits. ``ranks``: the pod of each rank that has trained the newest step; ``host``:
    the pod on the coordinator's node. A worker or agent is killed in a pod that is neither this one nor that
    of rank 0, if there is such a pod. Raises ValueError if no rank trains."""
    if kind == HOST:
        return host
    if not ranks:
        raise ValueError("no rank trains")
    first = ranks[min(ranks)]
    if kind == LEADER:
        return first
    others = [pod for _, pod in sorted(ranks.items(), reverse=True)]
    return min(others, key=lambda pod: (pod in (first, host), pod == first))
