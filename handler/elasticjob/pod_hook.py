"""What the pod's preStop hook reads: whether the workers of this pod take part in drains, and do so now.

The hook (the operator's ``act/pre_stop.py``) is a few lines of shell that find files by the pod's UID, for
several pods may share a folder. While ``ready`` is there, the hook gives the operator some seconds to begin a
drain; while ``draining`` is there, it waits. Without either it ends, and the container is told to end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading

from elasticjob.contract.names import HOOK_DRAINING, HOOK_FOLDERS, HOOK_PREFIX, HOOK_READY

logger = logging.getLogger(__name__)


class PodHook:
    """The files of one round, for the pod with this UID; without one there are none."""

    def __init__(self, uid: str, folders: tuple[str, ...] = HOOK_FOLDERS) -> None:
        self._paths = [f"{folder}/{HOOK_PREFIX}{uid}." for folder in folders] if uid else []
        self._lock = threading.Lock()
        self._closed = False
        self._remove()  # those of a killed torchrun in the same container

    def say(self, what: str) -> None:
        """``HOOK_READY`` or ``HOOK_DRAINING``, until it is closed."""
        with self._lock:
            if self._closed:
                return
            for path in self._paths:
                try:
                    os.close(os.open(path + what, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
                except OSError as error:
                    logger.debug("the preStop hook cannot be told: %s", error)
                else:
                    return

    def close(self) -> None:
        """The round is over for this agent: the hook ends."""
        with self._lock:
            self._closed = True
            self._remove()

    def _remove(self) -> None:
        for path in self._paths:
            for what in (HOOK_READY, HOOK_DRAINING):
                with contextlib.suppress(OSError):
                    os.unlink(path + what)
