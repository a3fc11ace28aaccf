"""Logs of a job's pods while it runs, on asyncio: as ``following``, with a task for each pod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

from elasticjob_client.errors import ClientError
from elasticjob_client.following import LOOK_SECONDS, Begun, unreadable
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from elasticjob_client.tell.lines import Line

Read = Callable[[Pod, int | None], AsyncIterator[Line]]


class AsyncFollower:
    """Reads each pod's log in a task of its own, until the job has ended and all has been read."""

    def __init__(
        self,
        look: Callable[[], Awaitable[tuple[ElasticJob, list[Pod]]]],
        read: Read,
        rank: int | None,
        since: datetime | None,
    ) -> None:
        self._look, self._read, self._begun = look, read, Begun(rank, since)
        self._lines: asyncio.Queue[Line] = asyncio.Queue(maxsize=10_000)
        self._news = asyncio.Event()
        self._open = 0

    async def lines(self) -> AsyncIterator[Line]:
        """Lines as they come. Raises ClientError if the job cannot be read."""
        tasks: list[asyncio.Task[None]] = []
        try:
            while True:
                job, pods = await self._look()
                for pod, rank in self._begun.new(job, pods):
                    self._open += 1
                    tasks.append(asyncio.ensure_future(self._follow(pod, rank)))
                async for line in self._arrived():
                    yield line
                if self._open == 0 and self._lines.empty():
                    if job.ended:
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, pod: Pod, rank: int | None) -> None:
        try:
            async for found in self._read(pod, rank):
                await self._lines.put(found)
                self._news.set()
        except ClientError as error:
            await self._lines.put(unreadable(pod, rank, error))
        finally:
            self._open -= 1
            self._news.set()

    async def _arrived(self) -> AsyncIterator[Line]:
        """What comes until it is time to look again, or until nothing can come any more."""
        until = time.monotonic() + LOOK_SECONDS
        while True:
            self._news.clear()
            while not self._lines.empty():
                yield self._lines.get_nowait()
            left = until - time.monotonic()
            if self._open == 0 or left <= 0:
                return
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except asyncio.TimeoutError:
                return
