"""How many interpreters may wait beside the workers, from what memory there is. Training comes first: a
container that is out of memory loses all of its processes (Kubernetes sets ``memory.oom.group``)."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
SIZE = 400 * MIB
"""Private memory of one that waits, until one was measured (torch 2.15 with torch._dynamo: 371 MiB)."""
KEEP_FREE = 0.10
"""Of the limit: what is left free when one is made. Half of it, and one is given back."""


@dataclass(frozen=True)
class Memory:
    """Bytes. ``available`` is what can still be had without anything being killed."""

    limit: int
    available: int


@dataclass(frozen=True)
class Count:
    """How many there should be, and why not more ("" if there is one for each worker)."""

    number: int
    why: str = ""


def count(memory: Memory | None, workers: int, idle: int, size: int = SIZE) -> Count:
    """How many should wait, for this many workers on this node; ``idle`` of them do, and use memory already.

    ``memory`` is None where it can't be known: then there is one for each worker.
    """
    if memory is None:
        return Count(workers)
    reserve = round(memory.limit * KEEP_FREE)
    if idle and memory.available < reserve // 2:
        excess = -(-(reserve - memory.available) // max(size, 1))
        return Count(max(0, min(idle - excess, workers)), _why(memory, size))
    room = max(0, memory.available - reserve) // max(size, 1)
    number = min(workers, idle + room)
    return Count(number, _why(memory, size) if number < workers else "")


def _why(memory: Memory, size: int) -> str:
    return (
        f"{memory.available // MIB} MiB of {memory.limit // MIB} MiB are free, each takes {size // MIB} MiB, "
        f"and {KEEP_FREE:.0%} of the limit is left free"
    )
