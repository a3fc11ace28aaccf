"""Python's garbage collector, set so that it does not hold up the event loop.

A full collection looks at every object that there is. With 1,000 jobs it took up to 0.65 s, and a start had
some eighty of them. Here what has outlived a young collection is looked at once more, and then frozen: no
later collection looks at it. It is freed as ever when the last reference to it goes. Only a circle of
frozen objects would stay, so once in a while everything is looked at.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

YOUNG, MIDDLE = 10_000, 5
"""So many new containers until the youngest generation is collected, and so often until the middle one is."""
_NEVER = 1_000_000
WHOLE_SECONDS = 6 * 3600.0
"""Between two looks at everything."""


class Collector:
    """``monotonic`` gives seconds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._whole = monotonic()
        self._due = False
        self._before = gc.get_threshold()

    def start(self) -> None:
        """From now on, for the whole process."""
        gc.set_threshold(YOUNG, MIDDLE, _NEVER)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """As Python has it."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        """Called by Python in whichever thread it collects."""
        if phase == "stop" and info["generation"] == 1 and not self._due and not self._loop.is_closed():
            self._due = True
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._due = False
        if self._monotonic() - self._whole > WHOLE_SECONDS:
            self._whole = self._monotonic()
            gc.unfreeze()
        gc.collect()
        gc.freeze()
