"""What the synchronous client does with threads: follow several logs at once, and wait with a deadline.

``on_asyncio`` has the same names for asyncio. Neither is generated: threads and tasks differ too much.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from elasticjob_client.errors import ClientError, NoServer
from elasticjob_client.explain.lines import Line
from elasticjob_client.following import LOOK_SECONDS, End, Log, OpenLogs
from elasticjob_client.patience import Notice, Patience
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from elasticjob_client.waiting import Until, check_reached, wait_timeout_error

POLL_SECONDS = 1.0
"""Between two looks at a job that is waited for."""
_JOIN_SECONDS = 1.0

_T = TypeVar("_T")


def opened(start: Callable[[], Iterable[_T]]) -> Iterator[_T]:
    """What ``start`` gives, one by one. It is called at once, so that its errors come at once."""
    return iter(start())


def reach(
    job: ElasticJob,
    until: Until,
    deadline: float | None,
    patience: Patience,
    watched: Callable[[], Iterator[ElasticJob]],
    again: Callable[[], ElasticJob],
) -> ElasticJob:
    """Read the job ``again`` until it is what is waited for. A watch (``watched``) could not be left at the
    deadline. Raises TimeoutError then, and JobFailed."""
    del watched
    pause = POLL_SECONDS
    while not check_reached(job, until):
        left = math.inf if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise wait_timeout_error(job, until, patience.reason)
        time.sleep(min(pause, left))
        try:
            job, pause = again(), POLL_SECONDS
            patience.answered()
        except NoServer as error:
            pause = patience.pause(error)
    return job


class Follower:
    """Reads each pod's log in a thread of its own, until the job has ended and all has been read.

    ``look`` gives the job and its pods, ``read`` the lines of a log. A server that is away is asked again,
    and a log that breaks off is opened again; a notice says so.
    """

    def __init__(
        self,
        look: Callable[[], tuple[ElasticJob, list[Pod]]],
        read: Callable[[Log], Iterator[Line]],
        logs: OpenLogs,
        notice: Notice,
    ) -> None:
        self._look, self._read, self._logs = look, read, logs
        self._patience = Patience(notice)
        self._lines: queue.Queue[Line | End] = queue.Queue(maxsize=10_000)
        self._running: dict[Log, threading.Thread] = {}
        self._over = threading.Event()

    def lines(self) -> Iterator[Line]:
        """Lines as they come. Raises ClientError if the job cannot be read."""
        try:
            while True:
                try:
                    job, pods = self._look()
                except NoServer as error:
                    yield from self._arrived(self._patience.pause(error), to_the_end=True)
                    continue
                if self._patience.answered():  # connections from before may be dead without a sign
                    for log in self._running:
                        log.open_again()
                for log in self._logs.to_read(job, pods):
                    self._running[log] = threading.Thread(target=self._follow, args=(log,), daemon=True)
                    self._running[log].start()
                yield from self._arrived(LOOK_SECONDS)
                if job.ended and not self._running and not self._logs.reopens:
                    return
        finally:
            self._close()

    def _close(self) -> None:
        """End the threads and connections of a follower that is no longer read."""
        self._over.set()
        for log in self._running:
            log.stop()
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._running.values():
            thread.join(max(0.0, until - time.monotonic()))

    def _follow(self, log: Log) -> None:
        error = None
        try:
            for found in self._read(log):
                self._put(found)
                if self._over.is_set():
                    break
        except ClientError as raised:
            error = raised
        finally:
            self._put(End(log, error))

    def _put(self, found: Line | End) -> None:
        while not self._over.is_set():
            try:
                self._lines.put(found, timeout=LOOK_SECONDS)
            except queue.Full:
                continue
            return

    def _arrived(self, seconds: float, to_the_end: bool = False) -> Iterator[Line]:
        """What comes until it is time to look again, or until nothing can come any more."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                found = self._lines.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(found, Line):
                yield found
            else:
                del self._running[found.log]
                self._logs.ended(found.log, found.error)
            if not to_the_end and not self._running and not self._logs.reopens and self._lines.empty():
                return
