"""Logs of a job's pods while it runs: of the pods that there are, and of those that replace them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from elasticjob_client.errors import ClientError
from elasticjob_client.pods import Pod, ranks
from elasticjob_client.resource import ElasticJob
from elasticjob_client.tell.lines import Line, chosen

LOOK_SECONDS = 1.0
"""Between two looks for new pods."""

Read = Callable[[Pod, int | None], Iterator[Line]]


class Begun:
    """Which logs are read already. ``since``: pods that ended before are left out."""

    def __init__(self, rank: int | None, since: datetime | None) -> None:
        self._rank, self._since = rank, since
        self._known: set[tuple[str, str, int]] = set()

    def new(self, job: ElasticJob, pods: list[Pod]) -> list[tuple[Pod, int | None]]:
        """The pods whose logs are to be read from now on, each with its rank."""
        found = []
        for pod in chosen(job, pods, self._rank):
            key = (pod.name, pod.uid, pod.restarts)
            if key in self._known or (pod.ended and self._since and pod.ended < self._since):
                continue
            self._known.add(key)
            found.append((pod, ranks(job).get(pod.name)))
        return found


def unreadable(pod: Pod, rank: int | None, error: ClientError) -> Line:
    """What stands in the place of a log."""
    return Line(pod=pod.name, rank=rank, text=f"({error})", time=datetime.now(timezone.utc))


class Follower:
    """Reads each pod's log in a thread of its own, until the job has ended and all has been read.

    ``look`` gives the job and its pods, ``read`` the lines of a pod, with its rank.
    """

    def __init__(
        self,
        look: Callable[[], tuple[ElasticJob, list[Pod]]],
        read: Read,
        rank: int | None,
        since: datetime | None,
    ) -> None:
        self._look, self._read, self._begun = look, read, Begun(rank, since)
        self._lines: queue.Queue[Line | None] = queue.Queue(maxsize=10_000)
        self._running = 0

    def lines(self) -> Iterator[Line]:
        """Lines as they come. Raises ClientError if the job cannot be read."""
        while True:
            job, pods = self._look()
            for pod, of in self._begun.new(job, pods):
                self._running += 1
                threading.Thread(target=self._follow, args=(pod, of), daemon=True).start()
            yield from self._arrived()
            if job.ended and self._running == 0:
                return

    def _follow(self, pod: Pod, rank: int | None) -> None:
        try:
            for found in self._read(pod, rank):
                self._lines.put(found)
        except ClientError as error:
            self._lines.put(unreadable(pod, rank, error))
        finally:
            self._lines.put(None)

    def _arrived(self) -> Iterator[Line]:
        """What comes until it is time to look again, or until nothing can come any more."""
        until = time.monotonic() + LOOK_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                found = self._lines.get(timeout=left)
            except queue.Empty:
                return
            if found is None:
                self._running -= 1
            else:
                yield found
            if self._running == 0 and self._lines.empty():
                return
