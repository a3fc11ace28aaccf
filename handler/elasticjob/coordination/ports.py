"""Ports of participants that are waited for: one that refuses connections is the proof that its agent has
ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from elasticjob.core.heartbeats import ProbeResult
from elasticjob.peers.sight import Sight
from elasticjob.store.probe import probe

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0


class Ports:
    """Tries ports in a thread of its own, one set at a time; ``notify`` is called when one has refused."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._refused: dict[str, str] = {}
        self._thread: threading.Thread | None = None

    def try_these(self, endpoints: Mapping[str, str]) -> None:
        """Try them, by pod's UID, unless others are being tried."""
        if endpoints and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(
                target=self._try, args=(dict(endpoints),), name="elasticjob-ports", daemon=True
            )
            self._thread.start()

    def refused(self, sight: Sight) -> dict[str, str]:
        """By pod's UID, those whose last endpoint refuses connections. A new process in the pod has
        another."""
        return {
            p.key: "its port refuses connections"
            for p in sight.peers.values()
            if self._refused.get(p.key) == p.record.endpoint
        }

    def _try(self, endpoints: dict[str, str]) -> None:
        if refusing(endpoints, self._refused):
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
