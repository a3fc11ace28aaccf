"""Ports of participants that are waited for: one that refuses connections is the proof that its agent has
ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from elasticjob.core.heartbeats import ProbeResult
from elasticjob.peers.sight import Sight
from elasticjob.store.probe import probe

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
AGAIN_SECONDS = 0.3
"""From one refusal to the try that confirms it."""


class Ports:
    """Tries ports in a thread of its own, one set at a time; ``notify`` is called when one has refused."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._refused: dict[str, tuple[str, float]] = {}
        self._thread: threading.Thread | None = None

    def try_these(self, endpoints: Mapping[str, str]) -> None:
        """Try them, by pod's UID, unless others are being tried."""
        if endpoints and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(
                target=self._try, args=(dict(endpoints),), name="elasticjob-ports", daemon=True
            )
            self._thread.start()

    def refused(self, sight: Sight, now: float) -> dict[str, str]:
        """By pod's UID, those whose last endpoint refuses connections. A new process in the pod has another
        one, and one whose Lease has changed since lives."""
        found = {}
        for p in sight.peers.values():
            endpoint, at = self._refused.get(p.key, ("", 0.0))
            if endpoint and endpoint == p.record.endpoint and now - p.silent <= at:
                found[p.key] = "its port refuses connections"
        return found

    def _try(self, endpoints: dict[str, str]) -> None:
        """One refusal may be a mistake of the network between: only the second counts."""
        once: dict[str, str] = {}
        twice: dict[str, str] = {}
        if refusing(endpoints, once):
            time.sleep(AGAIN_SECONDS)
            at = time.monotonic()
            if refusing(once, twice):
                self._refused.update({key: (endpoint, at) for key, endpoint in twice.items()})
                self._notify()


def refusing(endpoints: Mapping[str, str], found: dict[str, str]) -> bool:
    """Add those that refuse connections to ``found``. Returns whether there are any."""
    keys = list(endpoints)
    try:
        answers = probe({i: endpoints[key] for i, key in enumerate(keys)}, PROBE_SECONDS)
    except Exception:
        logger.debug("ports cannot be tried", exc_info=True)
        return False
    new = {keys[i]: endpoints[keys[i]] for i, what in answers.items() if what is ProbeResult.REFUSED}
    found.update(new)
    return bool(new)
