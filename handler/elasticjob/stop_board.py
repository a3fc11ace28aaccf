"""The agent's side of ``elasticjob.stopping``: what its workers are asked, and what they say."""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from elasticjob.contract.names import HOOK_DRAINING, HOOK_READY
from elasticjob.pod_hook import PodHook
from elasticjob.speakers import Speakers
from elasticjob.stopping import ASKED_FILE, HELD, HOLD, STOP_SUFFIX, STOPPED, WORD_BYTES, map_word
from elasticjob.torch_agent import AgentWorker

logger = logging.getLogger(__name__)

FEW_SECONDS = 60.0
"""How long some workers may call ``should_stop`` and others not before that is said."""


class StopBoard:
    """One round of one agent with this many ``workers``. Without a ``folder``, or where their number is not
    known, no worker takes part. The pod's preStop ``hook`` is told. ``listed`` gives the workers, none while
    they are not known."""

    def __init__(
        self,
        folder: str,
        workers: int | None,
        hook: PodHook | None = None,
        listed: Callable[[], Sequence[AgentWorker]] = tuple,
    ) -> None:
        self._speakers = Speakers(folder, STOP_SUFFIX, listed)
        self._few_since: float | None = None
        self._hook = hook or PodHook("")
        self._workers = workers or 0
        self._take_part = False
        self._asked: memoryview[int] | list[int] = [0]
        if not folder:
            return
        try:
            self._asked = map_word(os.path.join(folder, ASKED_FILE), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except (OSError, ValueError) as error:
            logger.warning("workers cannot be asked to stop before a planned change: %s", error)
            self._workers = 0

    def take_part(self) -> bool:
        """Whether all workers have called ``should_stop``."""
        if not self._take_part:
            words = self._words()
            self._take_part = self._workers > 0 and all(words)
            if self._take_part:
                self._hook.say(HOOK_READY)
            elif any(words):
                self._say_few(sum(map(bool, words)))
        return self._take_part

    def ask(self, number: int) -> None:
        """``NOTHING_ASKED``, ``HOLD``, or a step plus 1."""
        if number == HOLD:
            self._hook.say(HOOK_DRAINING)
        with contextlib.suppress(ValueError):  # closed at this moment
            self._asked[0] = number

    def close(self) -> None:
        """The round is over for this agent: what its workers are asked stays as it is."""
        self._hook.close()
        word, self._asked = self._asked, [0]
        if isinstance(word, memoryview):
            mapping = word.obj
            word.release()
            assert isinstance(mapping, mmap.mmap)
            mapping.close()

    def first_possible_step(self) -> int:
        """The first step at which no worker has gone on; to be asked a moment after it was told to hold."""
        return max((word >> 2) + (word & 3 not in (HELD, STOPPED)) for word in self._words())

    def stopped_at(self) -> int | None:
        """The step at which all workers have stopped; None while they have not."""
        words = self._words()
        if not all(word & 3 == STOPPED for word in words):
            return None
        return max(word >> 2 for word in words)

    def _words(self) -> list[int]:
        """A number for each worker: that of the process that speaks for it."""
        try:
            look = self._speakers.look()
        except OSError:  # the folder is gone, or there are no descriptors left
            return [0] * self._workers
        for path in look.ended:
            with contextlib.suppress(OSError):
                self._speakers.forget(path)
        found = [_read(path) for path in look.speaking[: self._workers]]
        return found + [0] * (self._workers - len(found))

    def _say_few(self, number: int) -> None:
        """Once: some call ``should_stop``, and others have not for a long time."""
        now = time.monotonic()
        if self._few_since is None:
            self._few_since = now
        if 0 <= self._few_since < now - FEW_SECONDS:
            self._few_since = math.inf
            logger.warning(
                "%d of %d local workers call should_stop, so no planned change waits for a checkpoint: "
                "call it on every rank",
                number,
                self._workers,
            )


def _read(path: str) -> int:
    """A worker's number; 0 while it has not called."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return 0
    return int.from_bytes(data, byteorder=sys.byteorder, signed=True) if len(data) == WORD_BYTES else 0
