"""How many interpreters may wait beside the workers, given the memory that is left. Training comes first: a
container that is out of memory loses all of its processes (Kubernetes sets ``memory.oom.group``)."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
SIZE = 400 * MIB
"""Private memory of one interpreter, until one was measured (torch 2.15 with torch._dynamo: 371 MiB)."""
KEEP_FREE = 0.10
"""The share of the limit that stays free when one is made. If only half of it is free, some are ended."""


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    limit: int
    available: int
    """How much more can be used before something is killed; at most ``limit``."""
    own: int | None = None
    """How much this container uses, if others share the limit; None: it uses all that is in use."""

    @property
    def used(self) -> int:
        """How much this container uses."""
        return self.limit - self.available if self.own is None else self.own


@dataclass(frozen=True)
class Count:
    """How many interpreters there should be, and why not more ("" if there is one for each worker)."""

    number: int
    why: str = ""


def count(
    memory: Memory | None, workers: int, idle: int, size: int = SIZE, highest: int = 0, growth: int = 0
) -> Count:
    """How many should wait for this many workers here, of which ``idle`` do already.

    ``memory`` None: not known; then there is one for each worker. ``size``: bytes of one. ``highest``: the
    most that training has used before (``used_by_training``), which a save that copies the model needs again.
    ``growth``: by how much its use has grown since the last call. It may grow twice as much until the next,
    and what is given back must be free before.
    """
    if memory is None:
        return Count(workers)
    size = max(size, 1)
    reserve = round(memory.limit * KEEP_FREE)
    used = used_by_training(memory, idle, size)
    more = max(0, highest - used)
    growth = 2 * max(0, growth)
    # Up to its highest use it grows as before; beyond that, the limit is not known.
    soon = memory.available - (growth if used > highest else min(growth, more))
    if idle and soon < reserve // 2:
        excess = -(-(reserve - soon) // size)
        return Count(max(0, min(idle - excess, workers)), _why(memory, size))
    free = memory.available + idle * size
    most = max(0, free - more - reserve) // size
    kept = max(0, free - more - reserve // 2) // size
    number = min(workers, max(most, min(idle, kept)))
    if number == workers:
        return Count(number)
    return Count(number, _why(memory, size, more))


def used_by_training(memory: Memory, idle: int, size: int) -> int:
    """How much the container uses without the interpreters that wait."""
    return max(0, memory.used - idle * size)


def _why(memory: Memory, size: int, more: int = 0) -> str:
    have = f"{memory.available // MIB} MiB of {memory.limit // MIB} MiB are free"
    if more:
        have += f", training has used {more // MIB} MiB more before, as in a save"
    return f"{have}, each takes {size // MIB} MiB, and {KEEP_FREE:.0%} of the limit is left free"
