"""Processor time of processes, in nanoseconds and not in the ticks of /proc/PID/stat: a re-join takes less
of a participant than one tick.

Linux has a clock of the processor time of each process: user and system, all threads, also those that have
ended (clock_getcpuclockid(3)).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

_ALL_THREADS_EXACTLY = 2
"""CPUCLOCK_SCHED of the kernel's include/linux/posix-timers.h: what the scheduler has counted."""


def processor_seconds(pid: int) -> float:
    """Processor time of a process since its start. Raises OSError if there is no such process."""
    return time.clock_gettime(~pid << 3 | _ALL_THREADS_EXACTLY)


class ProcessorTime:
    """The processor time of several processes under one name each, from its making on, without what they use
    while nothing happens: it is made then, and takes ``idle_seconds`` to see how much that is."""

    def __init__(self, groups: Mapping[str, Sequence[int]], idle_seconds: float = 2.0) -> None:
        self._groups = groups
        before, began = self._read(), time.monotonic()
        time.sleep(idle_seconds)
        self._before, self._began = self._read(), time.monotonic()
        seconds = self._began - began
        self._idle = {name: (used - before[name]) / seconds for name, used in self._before.items()}

    def milliseconds(self, shared_by: int) -> dict[str, float]:
        """Used since then by each group of processes, divided by ``shared_by``; 0 or more."""
        now, seconds = self._read(), time.monotonic() - self._began
        used = {name: now[name] - self._before[name] - self._idle[name] * seconds for name in now}
        return {name: 1000 * max(0.0, one) / shared_by for name, one in used.items()}

    def _read(self) -> dict[str, float]:
        return {name: sum(map(processor_seconds, pids)) for name, pids in self._groups.items()}
