"""The agent's side of ``elasticjob.worker.stopping``: it asks its workers to stop and reads their answers."""

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

from elasticjob.contract.names import HOOK_DRAINING, HOOK_READY, HOOK_REPLACING
from elasticjob.drain.pre_stop import PodHook
from elasticjob.worker.stopping import (
    ASKED_FILE,
    HELD,
    HOLD,
    STOP_SUFFIX,
    STOPPED,
    WORD_BYTES,
    map_word,
)
from elasticjob.workers.speakers import Speakers
from elasticjob.workers.torch_agent import AgentWorker

logger = logging.getLogger(__name__)

FEW_SECONDS = 60.0
"""How long some workers may call ``should_stop`` and others not, before a warning."""
ENDED = -1
"""Stands for a step: no worker is left that could stop."""


class StopBoard:
    """One round of one agent with this many ``workers``. No worker takes part if their number is unknown or
    ``folder`` is empty. The pod's preStop ``hook`` learns of a drain. ``listed`` lists the workers; it is
    empty while they are unknown. ``has_ended`` returns whether the worker of a local rank, or all workers if
    that is None, have ended well."""

    def __init__(
        self,
        folder: str,
        workers: int | None,
        hook: PodHook | None = None,
        listed: Callable[[], Sequence[AgentWorker]] = tuple,
        has_ended: Callable[[int | None], bool] = lambda _: False,
    ) -> None:
        self._speakers = Speakers(folder, STOP_SUFFIX, listed)
        self._has_ended = has_ended
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
                self._warn_of_few(sum(map(bool, words)))
        return self._take_part

    def replacing(self, on: bool) -> None:
        """Whether the round goes on until the next pods of members that leave have joined."""
        if on:
            self._hook.say(HOOK_REPLACING)
        else:
            self._hook.take_back(HOOK_REPLACING)

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

    def first_possible_step(self) -> int | None:
        """The first step from which no worker has gone on. Call it a moment after ``ask(HOLD)``. None while a
        worker's step is unknown. Workers that have ended well do not count; 0 if no other is left."""
        words = self._living()
        if not all(words):
            return None
        return max(((word >> 2) + (word & 3 not in (HELD, STOPPED)) for word in words), default=0)

    def stopped_at(self) -> int | None:
        """The step at which the workers have stopped; ENDED if all have ended well, None while one goes
        on."""
        words = self._living()
        if not all(word & 3 == STOPPED for word in words):
            return None
        return max((word >> 2 for word in words), default=ENDED)

    def _living(self) -> list[int]:
        """The numbers of the workers that have not ended well."""
        # First the numbers, then who has ended: a worker that stops has not ended.
        return [word for rank, word in self._by_worker() if not self._has_ended(rank)]

    def _words(self) -> list[int]:
        return [word for _, word in self._by_worker()]

    def _by_worker(self) -> list[tuple[int | None, int]]:
        """Local rank (None if unknown) and number of each worker, as the process that speaks for it wrote it;
        0 if no process has."""
        try:
            files = self._speakers.scan()
        except OSError:  # the folder is gone, or there are no descriptors left
            return [(None, 0)] * self._workers
        self._speakers.forget(files.ended)
        speaking = list(zip(files.ranks, files.speaking, strict=True))[: self._workers]
        found = [(rank, _read(path)) for rank, path in speaking]
        return found + [(None, 0)] * (self._workers - len(found))

    def _warn_of_few(self, number: int) -> None:
        """Warn once that some call ``should_stop``, and others have not for a long time."""
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
