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


def count(
    memory: Memory | None, workers: int, idle: int, size: int = SIZE, highest: int = 0, falling: int = 0
) -> Count:
    """How many should wait, for this many workers here; ``idle`` of them do, and use memory already.

    ``memory`` is None where it can't be known: then there is one for each worker. ``highest`` is the most
    that all else has used before (``used_by_others``): a save that copies the model needs it again.
    ``falling`` is by how much the available memory has fallen since the last look: it may fall as much again
    until the next one, and what is given back must be free by then.
    """
    if memory is None:
        return Count(workers)
    size = max(size, 1)
    reserve = round(memory.limit * KEEP_FREE)
    soon = memory.available - 2 * max(0, falling)
    if used_by_others(memory, idle, size) <= highest:  # as before: it will not fall below what it was then
        soon = max(soon, min(memory.available, memory.limit - highest - idle * size))
    if idle and soon < reserve // 2:
        excess = -(-(reserve - soon) // size)
        return Count(max(0, min(idle - excess, workers)), _why(memory, size))
    most = max(0, memory.limit - highest - reserve) // size
    kept = max(0, memory.limit - highest - reserve // 2) // size
    room = max(0, memory.available - reserve) // size
    number = min(workers, max(min(idle + room, most), min(idle, kept)))
    if number == workers:
        return Count(number)
    if number < min(workers, idle + room):
        return Count(number, _why(memory, size, highest))
    return Count(number, _why(memory, size))


def used_by_others(memory: Memory, idle: int, size: int) -> int:
    """What is in use beside those that wait."""
    return max(0, memory.limit - memory.available - idle * size)


def _why(memory: Memory, size: int, highest: int = 0) -> str:
    if highest:
        have = f"{highest // MIB} MiB of {memory.limit // MIB} MiB were in use before, as in a save"
    else:
        have = f"{memory.available // MIB} MiB of {memory.limit // MIB} MiB are free"
    return f"{have}, each takes {size // MIB} MiB, and {KEEP_FREE:.0%} of the limit is left free"
