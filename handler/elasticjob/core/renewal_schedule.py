"""When a Lease is renewed while there is nothing new to write. Pure."""

from __future__ import annotations

from collections.abc import Callable


class RenewalSchedule:
    """Times are the caller's monotonic seconds. ``jitter`` returns a factor for each interval, so that not
    all Leases are renewed at one moment."""

    def __init__(self, seconds: float, now: float, jitter: Callable[[], float]) -> None:
        self.seconds = seconds
        self.due = float("inf")
        self._jitter = jitter
        self._began = now

    def begin(self, now: float) -> None:
        """The Lease has been written: the interval begins again."""
        self._began, self.due = now, now + self.seconds * self._jitter()

    def every(self, seconds: float, now: float) -> bool:
        """Renew at this interval from now on. Returns whether it has changed.

        A shorter interval begins now: all that wait learn of it at one moment. A longer one began with the
        last write, so that changes to and fro do not postpone a renewal.
        """
        if seconds == self.seconds:
            return False
        interval = seconds * self._jitter()
        self.due = self._began + interval if seconds > self.seconds else min(self.due, now + interval)
        self.seconds = seconds
        return True
