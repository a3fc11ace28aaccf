"""The files that the pod's preStop hook reads: whether the hook has to wait for a drain.

The hook (the operator's ``act/pre_stop.py``) is a few lines of shell that find files by the pod's UID, for
several pods may share a folder. While ``ready`` is there, the hook gives the operator some seconds to react;
while ``replacing`` or ``draining`` is there, it waits. If there is no file it ends, and the kubelet stops the
container.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence

from elasticjob.contract.names import HOOK_FOLDERS, HOOK_PREFIX, HOOK_WORDS

logger = logging.getLogger(__name__)


class PodHook:
    """The files of one round, for the pod with this UID; an empty UID has no files."""

    def __init__(self, uid: str, folders: tuple[str, ...] = HOOK_FOLDERS) -> None:
        self._paths = [f"{folder}/{HOOK_PREFIX}{uid}." for folder in folders] if uid else []
        self._lock = threading.Lock()
        self._closed = False
        self._remove(HOOK_WORDS)  # those of a killed torchrun in the same container

    def say(self, what: str) -> None:
        """Make the file of one of ``HOOK_WORDS``, until it is taken back or closed."""
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

    def take_back(self, what: str) -> None:
        """Remove one of ``HOOK_WORDS``. Does nothing once closed: the files are those of a later round."""
        with self._lock:
            if not self._closed:
                self._remove((what,))

    def close(self) -> None:
        """The round is over for this agent: the hook ends."""
        with self._lock:
            self._closed = True
            self._remove(HOOK_WORDS)

    def _remove(self, words: Sequence[str]) -> None:
        for path in self._paths:
            for what in words:
                with contextlib.suppress(OSError):
                    os.unlink(path + what)
