"""Python's garbage collector, set so that it does not hold up the event loop.

A full collection looks at every object that there is. With 1,000 jobs it took up to 0.65 s, and a start had
some eighty of them. Here what has outlived a young collection is looked at once more, and then frozen: no
later collection looks at it. It is freed as ever when the last reference to it goes. Only a cycle of
frozen objects would stay, so everything is looked at every few hours, and sooner if the process has grown by
half: a few cycles may hold much memory. What there is at the start, modules above all, is frozen before
anything is served.

What was freed goes back to the machine once a minute: a collection empties Python's own lists of free
objects, and glibc, which keeps what lies below something that is still used, is asked for the rest
(``malloc_trim``, some milliseconds). With another C library that part is left out.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

YOUNG, MIDDLE = 2_000, 5
"""How many new containers start a collection of the youngest generation, and how many of those start one of
the middle generation."""
_NEVER = 1_000_000
WHOLE_SECONDS = 6 * 3600.0
"""Time between two collections of everything."""
LITTLE = 128 * 2**20
"""A growth of the process by less than half and this number of bytes starts no collection of everything,
which takes 0.4 s with 1,000 jobs."""
GIVE_BACK_SECONDS = 60.0
"""Time between two returns of free memory to the machine."""


def resident_bytes() -> int:
    """How much memory the process has; 0 where that cannot be read."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class GcTuning:
    """``monotonic`` gives seconds, ``resident`` bytes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        monotonic: Callable[[], float] = time.monotonic,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._resident = resident
        self._whole = monotonic()
        self._most_bytes = 0
        """If the process has more, everything is looked at."""
        self._due = False
        self._before = gc.get_threshold()
        self._trim = _malloc_trim()
        self._returning: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, for the whole process."""
        gc.set_threshold(YOUNG, MIDDLE, _NEVER)
        gc.freeze()  # imports leave nothing to collect
        self._most_bytes = self._half_as_much_again()
        gc.callbacks.append(self._collected)
        self._returning = self._loop.call_later(GIVE_BACK_SECONDS, self.give_back)

    def stop(self) -> None:
        """Restore Python's own settings."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        if self._returning is not None:
            self._returning.cancel()
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        """Called by Python in whichever thread it collects."""
        if phase == "stop" and info["generation"] == 1 and not self._due and not self._loop.is_closed():
            self._due = True
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self, whole: bool = False) -> None:
        self._due = False
        whole = whole or self._monotonic() - self._whole > WHOLE_SECONDS
        if whole:
            self._whole = self._monotonic()
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        if whole:
            self._most_bytes = self._half_as_much_again()

    def _half_as_much_again(self) -> int:
        return self._resident() * 3 // 2 + LITTLE

    def give_back(self) -> None:
        """Return what is free to the machine, now and then once a minute."""
        if self._returning is not None:
            self._returning.cancel()
        self._settle(whole=self._resident() > self._most_bytes)
        self._trim(0)
        self._returning = self._loop.call_later(GIVE_BACK_SECONDS, self.give_back)


def _malloc_trim() -> Callable[[int], object]:
    """The C library's function; one that does nothing where it has none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return lambda _: None
