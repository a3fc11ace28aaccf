"""Logs of a job's pods while it runs: of the pods that there are, and of those that replace them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from elasticjob_client.errors import ClientError
from elasticjob_client.pods import Pod, ranks
from elasticjob_client.resource import ElasticJob
from elasticjob_client.tell.lines import Line, chosen

LOOK_SECONDS = 1.0
"""Between two looks for new pods."""

Read = Callable[[Pod, int | None, bool], Iterator[Line]]


class Follower:
    """Reads each pod's log in a thread of its own, until the job has ended and all has been read.

    ``look`` gives the job and its pods, ``read`` the lines of a pod (with its rank, and whether to follow).
    """

    def __init__(
        self,
        look: Callable[[], tuple[ElasticJob, list[Pod]]],
        read: Read,
        rank: int | None,
        since: datetime | None,
    ) -> None:
        self._look, self._read, self._rank, self._since = look, read, rank, since
        self._lines: queue.Queue[Line | None] = queue.Queue(maxsize=10_000)
        self._begun: set[tuple[str, str, int]] = set()
        self._running = 0

    def lines(self) -> Iterator[Line]:
        """Lines as they come. Raises ClientError if the job cannot be read."""
        while True:
            job, pods = self._look()
            for pod in chosen(job, pods, self._rank):
                self._begin(pod, ranks(job).get(pod.name))
            yield from self._arrived()
            if job.ended and self._running == 0:
                return

    def _begin(self, pod: Pod, rank: int | None) -> None:
        key = (pod.name, pod.uid, pod.restarts)
        if key in self._begun or (pod.ended and self._since and pod.ended < self._since):
            return
        self._begun.add(key)
        self._running += 1
        threading.Thread(target=self._follow, args=(pod, rank), daemon=True).start()

    def _follow(self, pod: Pod, rank: int | None) -> None:
        try:
            for found in self._read(pod, rank, True):
                self._lines.put(found)
        except ClientError as error:
            self._lines.put(Line(pod=pod.name, rank=rank, text=f"({error})", time=datetime.now(timezone.utc)))
        finally:
            self._lines.put(None)

    def _arrived(self) -> Iterator[Line]:
        """What comes until it is time to look again, or until nothing can come any more."""
        timeout = LOOK_SECONDS
        while True:
            try:
                found = self._lines.get(timeout=timeout)
            except queue.Empty:
                return
            if found is None:
                self._running -= 1
            else:
                yield found
            timeout = LOOK_SECONDS if self._lines.empty() else 0.0
            if self._running == 0 and self._lines.empty():
                return
