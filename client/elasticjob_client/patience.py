"""A server that is away for a while is asked again, and a notice says so once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elasticjob_client.errors import NoServer

AWAY_SECONDS = 300.0
"""How long a server may be away from those who have begun to follow or to wait."""
LONGEST_PAUSE_SECONDS = 5.0
_FORGOTTEN_SECONDS = 60.0
"""A failure so long ago has nothing to do with the next one."""

Notice = Callable[[str], None]
"""Gets one sentence when something happens that is neither an error nor a result."""


def warn(text: str) -> None:
    """The default for notices: a warning of the logger ``elasticjob_client``, by default on stderr."""
    logging.getLogger("elasticjob_client").warning("%s", text)


class Patience:
    """How long to wait for a server that does not answer.

    The caller catches NoServer, sleeps for ``pause(error)`` seconds, and asks again.
    """

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._began, self._last, self._times = 0.0, 0.0, 0
        self._announced = False
        self.reason = ""
        """Why the server is thought to be away; "" if it is not."""

    def pause(self, error: NoServer) -> float:
        """The seconds until the next question. Raises the error after ``AWAY_SECONDS``."""
        now = time.monotonic()
        if not self._times or now - self._last > _FORGOTTEN_SECONDS:
            self._began, self._times, self._announced = now, 0, True
            self._notice(f"{error.reason}; trying again for {AWAY_SECONDS / 60:.0f} minutes")
        if now - self._began > AWAY_SECONDS:
            raise error
        self.reason, self._last = error.reason, now
        self._times += 1
        return min(float(self._times), LONGEST_PAUSE_SECONDS)

    def seems_back(self) -> bool:
        """It answers; if it soon fails again, the time that it may be away goes on. Returns whether it was
        said to be away."""
        was_away, self._announced, self.reason = self._announced, False, ""
        if was_away:
            self._notice("the API server answers again")
        return was_away

    def answered(self) -> bool:
        """It is back. Returns whether it was said to be away."""
        self._times = 0
        return self.seems_back()
