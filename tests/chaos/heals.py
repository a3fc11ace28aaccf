"""The ends of faults that are under way, each when it is due."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import replace

from tests.chaos.faults import Heal, Impossible
from tests.chaos.timeline import Timeline

AGAIN_SECONDS = 2.0
CALM_SECONDS = 5.0
"""For how long all must have been well before a fault that may end no round is blamed for one that ends."""


class Heals:
    """See the module. True while some are to come."""

    def __init__(self, timeline: Timeline, say: Callable[[str], None]) -> None:
        self._timeline = timeline
        self._say = say
        self._queue: list[tuple[float, int, Heal]] = []
        self._last = 0.0

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, heal: Heal) -> None:
        """It is due after its seconds."""
        heapq.heappush(self._queue, (self._timeline.now() + heal.seconds, time.monotonic_ns(), heal))

    @property
    def due(self) -> Heal | None:
        """The next one, if it is due."""
        return self._queue[0][2] if self._queue and self._queue[0][0] <= self._timeline.now() else None

    @property
    def over(self) -> bool:
        """Whether none is to come, and the last one was a while ago."""
        return not self._queue and self._timeline.now() - self._last > CALM_SECONDS

    def take(self) -> Heal:
        """The next one, to be run now."""
        return heapq.heappop(self._queue)[2]

    def run(self, heal: Heal, calm: bool) -> None:
        """Run it; it comes again if it is not possible now. ``calm``: all was well until then."""
        entry = self._timeline.fault(heal.name, "", calm)
        try:
            heal.run()
        except Impossible as error:  # the API server may just be starting
            self._timeline.skip(entry, f"tried again: {error}")
            self.add(replace(heal, seconds=AGAIN_SECONDS))
        self._last = self._timeline.now()

    def run_all(self) -> None:
        """After a failure: let nothing stay frozen or cut."""
        while self._queue:
            heal = self.take()
            try:
                heal.run()
            except Exception as error:  # noqa: BLE001 - the first failure is the one to be shown
                self._say(f"{heal.name}: {error}")
