"""The thread that watches the round Lease and hands every record on.

It never gives up: without a record nothing changes for a running round (I5). What goes wrong is kept in
``trouble`` for the log of whoever waits.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from elasticjob.api.errors import ApiError
from elasticjob.api.leases import LeaseApi
from elasticjob.api.refusal import Refusal
from elasticjob.contract.names import ROUND_ANNOTATION
from elasticjob.contract.records import RecordError, RoundRecord

logger = logging.getLogger(__name__)

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0


class RoundWatcher:
    """Watches one Lease by name; ``changed`` is called from the thread for every readable record."""

    def __init__(self, api: LeaseApi, lease: str, changed: Callable[[RoundRecord], None]) -> None:
        self._api = api
        self._lease = lease
        self._changed = changed
        self._stop = threading.Event()
        self._good_since: float | None = None
        self.refusal = Refusal()
        self.trouble = self._puzzle = ""
        self._thread = threading.Thread(target=self._run, name="elasticjob-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and know nobody any more who knows this object: they shall go together."""
        self._stop.set()
        self._api.stop()
        self._changed = _nobody
        if self._thread.ident is not None:
            self._thread.join(timeout=2)

    def good_for(self) -> float:
        """For how many seconds the watch has been good without a gap; 0 while it is not."""
        since = self._good_since
        return 0.0 if since is None else time.monotonic() - since

    def _run(self) -> None:
        pause = MIN_PAUSE_SECONDS
        while not self._stop.is_set():
            try:
                for lease in self._api.watch(self._lease):
                    if self._good_since is None:
                        self._good_since = time.monotonic()
                    self.refusal.saw(None)
                    self.trouble = ""
                    if lease is not None:
                        self._read(lease.annotations.get(ROUND_ANNOTATION, ""))
                        pause = MIN_PAUSE_SECONDS
                    if self._stop.is_set():
                        return
            except ApiError as error:
                self._failed(error)
            except Exception as error:
                # Whatever has arrived: a thread that ended would leave the agent in this round for ever.
                what = f"an answer can't be read ({type(error).__name__})"
                # It may stand there for long: the traceback is told once.
                level = logging.DEBUG if what == self._puzzle else logging.WARNING
                self._puzzle = what
                logger.log(level, "watch of Lease %s: %s", self._lease, what, exc_info=True)
                self._failed(ApiError(what))
            # Also after an end in order: what stands before an API server may end every watch at once.
            if self._stop.wait(pause * random.uniform(0.8, 1.2)):
                return
            pause = min(MAX_PAUSE_SECONDS, pause * 2)

    def _failed(self, error: ApiError) -> None:
        self._good_since = None
        self.trouble = str(error)
        self.refusal.saw(error)
        logger.debug("watch of Lease %s: %s", self._lease, error)

    def _read(self, text: str) -> None:
        if not text:
            return
        try:
            record = RoundRecord.parse(text)
        except RecordError as error:
            self.trouble = str(error)
            logger.warning("Lease %s is ignored: %s", self._lease, error)
            return
        self._changed(record)


def _nobody(record: RoundRecord) -> None:
    """Whoever was told has gone."""
