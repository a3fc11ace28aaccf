"""Logs of a job's pods while it runs: of the pods that there are, and of those that replace them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import NamedTuple

from elasticjob_client.errors import ClientError, NoServer, Rejected
from elasticjob_client.explain.lines import Line, Reader, chosen
from elasticjob_client.patience import AWAY_SECONDS, LONGEST_PAUSE_SECONDS, Notice
from elasticjob_client.pods import Pod, ranks
from elasticjob_client.resource import ElasticJob

LOOK_SECONDS = 1.0
"""Between two looks for new pods."""
_TRIES_AFTER_THE_END = 5
"""How often a log that breaks off is opened again if its job has ended."""
_LOOKS_AFTER_THE_END = 1
"""How often a log that is complete is opened again if its job has ended but its container is said to run."""
_LONG_SECONDS = 20.0
"""A log that was open for so long did not fail to open."""
_STATUS_SECONDS = 3.0
"""How long a pod's status may say that a container runs which has ended."""


class Log:
    """A pod's log that is followed, and how far it is read: it can be opened again where it broke off."""

    def __init__(self, pod: Pod, rank: int | None, since: datetime | None, tail: int | None) -> None:
        self.pod, self.rank = pod, rank
        self.timed = True
        """Whether its lines have times; a kubelet may refuse that."""
        self.wanted = False
        """Whether it is to be opened again, however it ended."""
        self._stop: Callable[[], None] | None = None
        self._stopped = False
        self._since, self._tail = since, tail
        self._last: datetime | None = None
        self._count, self._again = 0, 0
        self._behind = False
        self._opened, self._next = 0.0, 0.0
        self.failures, self._first_failure = 0, 0.0

    def reader(self) -> Reader:
        """Reads its lines, from where it is opened."""
        return Reader(self.pod.name, self.timed)

    @contextmanager
    def reading(self, stop: Callable[[], None]) -> Iterator[None]:
        """Enter this while the log is read; ``stop`` ends the reading from another thread."""
        self._stop = stop
        try:
            if self._stopped:
                stop()
            yield
        finally:
            self._stop = None

    def stop(self) -> None:
        """End the reading, or if it has not begun, end it as soon as it does."""
        self._stopped = True
        if stop := self._stop:
            stop()

    def open_again(self) -> None:
        """End the reading so that it begins again: its connection may be dead."""
        if stop := self._stop:
            self.wanted = True
            stop()

    def where(self) -> tuple[datetime | None, int | None]:
        """What to ask for next: the time to start from, and how many of the last lines."""
        self._behind, self._again, self._opened = self._last is not None, self._count, time.monotonic()
        return (self._last, None) if self._last else (self._since, self._tail)

    def is_new(self, line: Line) -> bool:
        """Whether it has not been read before the log broke off. Call it once for each line."""
        if line.time is None:
            self.failures = 0
            if not self.timed:
                self._last = datetime.now(timezone.utc)
            return True
        if self._behind and self._last and line.time <= self._last:
            if line.time < self._last:
                return False
            self._again -= 1
            if self._again >= 0:
                return False
        self._behind, self.failures = False, 0
        if self._last is None or line.time > self._last:
            self._last, self._count = line.time, 0
        if line.time == self._last:
            self._count += 1
        return True

    def ended(self, pause: float = 0.0) -> None:
        """Remember that it did; the next try has to wait."""
        now = time.monotonic()
        if self.wanted:
            self.wanted, self._next = False, now
            return
        if now - self._opened > _LONG_SECONDS:  # it was only silent, and something in between is impatient
            self.failures = 0
        self._first_failure = self._first_failure if self.failures else now
        self.failures += 1
        self._next = now + max(pause, min(self.failures - 1, LONGEST_PAUSE_SECONDS))

    @property
    def due(self) -> bool:
        """Whether it is time to open it again."""
        return time.monotonic() >= self._next

    def hopeless(self, ended: bool) -> bool:
        """Whether it is not worth another try."""
        if ended and self.failures > _TRIES_AFTER_THE_END:
            return True
        return time.monotonic() - self._first_failure > AWAY_SECONDS


class End(NamedTuple):
    """A log that is not read any more, why if it broke off, and whether it was ended to be opened again."""

    log: Log
    error: ClientError | None
    again: bool = False


class OpenLogs:
    """Which logs are open, and which are to be opened again. ``since`` leaves out pods that ended before."""

    def __init__(self, rank: int | None, since: datetime | None, tail: int | None, notice: Notice) -> None:
        self._rank, self._since, self._tail, self._notice = rank, since, tail, notice
        self._known: dict[tuple[str, str, int], Log] = {}
        self._again: dict[tuple[str, str, int], End] = {}
        self._running: set[tuple[str, str, int]] = set()

    def to_read(self, job: ElasticJob, pods: list[Pod]) -> list[Log]:
        """The logs that are to be read from now on: of new pods, and those that ended too early."""
        found, there = [], set()
        self._running = {_key(pod) for pod in pods if _runs(pod)}
        for pod in chosen(job, pods, self._rank):
            key = _key(pod)
            there.add(key)
            if key not in self._known:
                if self._since and _over_before(pod, self._since):
                    continue
                self._known[key] = Log(pod, None, self._since, self._tail)
                found.append(self._known[key])
        names = ranks(job)
        for log in self._known.values():  # a pod that replaces another begins before it joins
            log.rank = names.get(log.pod.name, self._rank)
        for key, end in list(self._again.items()):
            if key not in there or self._over(key, end, job.ended):
                del self._again[key]
                if end.error is not None:
                    self._notice(str(end.error))
            elif end.log.due:
                found.append(self._again.pop(key).log)
        return found

    def _over(self, key: tuple[str, str, int], end: End, ended: bool) -> bool:
        """Whether a log is not worth another try."""
        if end.again:
            return False
        if end.error is not None:
            return end.log.hopeless(ended)
        return key not in self._running or (ended and end.log.failures > _LOOKS_AFTER_THE_END)

    def ended(self, log: Log, error: ClientError | None) -> None:
        """A log that broke off is opened again later, and so is one whose container still runs: the kubelet
        may have begun another file. One that cannot be read is said to be so."""
        key, end = _key(log.pod), End(log, None if log.wanted else error, log.wanted)
        if end.again:
            log.ended()
            self._again[key] = end
        elif isinstance(error, NoServer):
            log.ended()
            self._again[key] = end
            if log.failures == 2:  # the first time, it may just go on
                self._notice(f"the log of pod {log.pod.name} breaks off: {error.reason}; trying again")
        elif error is not None:
            self._notice(str(error))
        elif key in self._running:
            log.ended(_STATUS_SECONDS)
            self._again[key] = end

    @property
    def reopens(self) -> bool:
        """Whether a log is to be opened again."""
        return bool(self._again)


def without_times(error: Rejected) -> bool:
    """Whether a log is refused because its lines cannot have times."""
    return "timestamp" in str(error).lower()


def _over_before(pod: Pod, since: datetime) -> bool:
    """Whether it had ended by then, and was not started again."""
    return bool(pod.ended and pod.ended < since and not _runs(pod))


def _runs(pod: Pod) -> bool:
    return pod.started is not None and (pod.ended is None or pod.started > pod.ended)


def _key(pod: Pod) -> tuple[str, str, int]:
    return pod.name, pod.uid, pod.restarts
