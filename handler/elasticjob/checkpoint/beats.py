"""The thread of rank 0 that renews the claim of its round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elasticjob.checkpoint.claims import BEAT_SECONDS, WATCH_SECONDS
from elasticjob.checkpoint.directory import Directory
from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

ENDING_SECONDS = 5
"""How long a script waits while the claim is given up; a storage that hangs must not hold it."""


class Beats(threading.Thread):
    """Renews the claim of ``held`` until it is stopped, or until another round has begun. ``clock`` returns
    seconds."""

    def __init__(self, held: Directory, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="elasticjob-claim", daemon=True)
        self._held = held
        self._clock = clock
        self._renewed = clock()
        self._said = False
        self._gives_up = False
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            if not self.renew():
                return
        if not self._gives_up:
            return
        try:
            self._held.end()
        except Exception as error:  # noqa: BLE001  # then a newcomer watches for some seconds
            log.debug(f"the claim was not given up: {error}")

    def renew(self) -> bool:
        """Renew the claim once; False if it need not be renewed again."""
        try:
            goes_on = self._held.beat()
        except Exception as error:  # noqa: BLE001  # the next one tries again
            silent = self._clock() - self._renewed
            if silent > WATCH_SECONDS and not self._said:
                self._said = True
                log.warning(
                    f"{self._held.claim.file} could not be renewed for {silent:.0f} s, so another job could "
                    f"take the directory: {error}"
                )
            return True
        self._renewed, self._said = self._clock(), False
        return goes_on

    def stop(self, *, gives_up: bool) -> None:
        """Stop renewing the claim. If the job ``gives_up`` the directory, another job may begin at once;
        otherwise that watches the claim first, and is refused if this job's next round begins meanwhile."""
        self._gives_up = gives_up
        self._stopped.set()
        self.join(timeout=ENDING_SECONDS)
