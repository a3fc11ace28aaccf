"""The agent's side of ``elasticjob.stopping``: what its workers are asked, and what they say."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

from elasticjob.contract.names import HOOK_DRAINING, HOOK_READY
from elasticjob.pod_hook import PodHook
from elasticjob.stopping import ASKED_FILE, HELD, HOLD, STOP_SUFFIX, STOPPED, WORD_BYTES, map_word

logger = logging.getLogger(__name__)


ENDED = -1
"""Instead of a step: no worker is left that could stop."""


class StopBoard:
    """One round of one agent with this many ``workers``. Without a ``folder``, or where their number is not
    known, no worker takes part. The pod's preStop ``hook`` is told. ``has_ended`` says whether the worker of
    a local rank has ended well: nothing more is asked of it."""

    def __init__(
        self,
        folder: str,
        workers: int | None,
        hook: PodHook | None = None,
        has_ended: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._folder = folder
        self._has_ended = has_ended
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
            self._take_part = self._workers > 0 and all(self._words())
            if self._take_part:
                self._hook.say(HOOK_READY)
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
        """The first step at which no worker has gone on; to be asked a moment after it was told to hold.
        Those that have ended well go nowhere: without others it is 0."""
        steps = ((word >> 2) + (word & 3 not in (HELD, STOPPED)) for word in self._living())
        return max(steps, default=0)

    def stopped_at(self) -> int | None:
        """The step at which all workers have stopped that have not ended well, ENDED if all have; None while
        one goes on."""
        words = self._living()
        if not all(word & 3 == STOPPED for word in words):
            return None
        return max((word >> 2 for word in words), default=ENDED)

    def _living(self) -> list[int]:
        """The numbers of the workers that have not ended well. Asked in this order: one that stops has not
        ended."""
        return [word for rank, word in enumerate(self._words()) if not self._has_ended(rank)]

    def _words(self) -> list[int]:
        return [_read(f"{self._folder}/{rank}{STOP_SUFFIX}") for rank in range(self._workers)]


def _read(path: str) -> int:
    """A worker's number; 0 while it has not called."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return 0
    return int.from_bytes(data, byteorder=sys.byteorder, signed=True) if len(data) == WORD_BYTES else 0
