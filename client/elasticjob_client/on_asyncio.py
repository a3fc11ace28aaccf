"""What the client for asyncio does with tasks, under the names of ``on_threads``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from elasticjob_client.errors import ClientError, NoServer
from elasticjob_client.explain.lines import Line
from elasticjob_client.following import LOOK_SECONDS, Log, OpenLogs
from elasticjob_client.patience import Notice, Patience
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from elasticjob_client.waiting import Until, check_reached, wait_timeout_error

_T = TypeVar("_T")


async def opened(start: Callable[[], Awaitable[AsyncIterator[_T] | list[_T]]]) -> AsyncIterator[_T]:
    """What ``start`` gives, one by one. It is called for the first of them."""
    found = await start()
    if isinstance(found, list):
        for one in found:
            yield one
    else:
        async for one in found:
            yield one


async def reach(
    job: ElasticJob,
    until: Until,
    deadline: float | None,
    patience: Patience,
    watched: Callable[[], AsyncGenerator[ElasticJob, None]],
    again: Callable[[], Awaitable[ElasticJob]],
) -> ElasticJob:
    """Watch the job until it is what is waited for: nothing has to be read ``again``. Raises TimeoutError at
    the deadline, and JobFailed."""
    del again

    async def seen() -> None:
        nonlocal job
        async with aclosing(watched()) as jobs:
            async for job in jobs:
                if check_reached(job, until):
                    return

    try:
        await asyncio.wait_for(seen(), None if deadline is None else deadline - time.monotonic())
    except asyncio.TimeoutError:
        raise wait_timeout_error(job, until, patience.reason) from None
    return job


class Follower:
    """Reads each pod's log in a task of its own, until the job has ended and all has been read."""

    def __init__(
        self,
        look: Callable[[], Awaitable[tuple[ElasticJob, list[Pod]]]],
        read: Callable[[Log], AsyncIterator[Line]],
        logs: OpenLogs,
        notice: Notice,
    ) -> None:
        self._look, self._read, self._logs = look, read, logs
        self._patience = Patience(notice)
        self._lines: asyncio.Queue[Line] = asyncio.Queue(maxsize=10_000)
        self._news = asyncio.Event()
        self._open: dict[asyncio.Task[None], Log] = {}

    async def lines(self) -> AsyncIterator[Line]:
        """Lines as they come. Raises ClientError if the job cannot be read."""
        try:
            while True:
                seconds = LOOK_SECONDS
                try:
                    job, pods = await self._look()
                except NoServer as error:
                    seconds = self._patience.pause(error)
                    ended = False
                else:
                    if self._patience.answered():  # connections of before may be dead
                        for log in self._open.values():
                            log.open_again()
                    ended = job.ended
                    for log in self._logs.to_read(job, pods):
                        task = asyncio.ensure_future(self._follow(log))
                        self._open[task] = log
                        task.add_done_callback(self._done)
                until = time.monotonic() + seconds
                async for line in self._arrived(until):
                    yield line
                if not self._open and self._lines.empty():
                    if ended and not self._logs.reopens:
                        return
                    await asyncio.sleep(until - time.monotonic())
        finally:
            tasks = list(self._open)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._news.set()

    async def _follow(self, log: Log) -> None:
        error = None
        try:
            async for found in self._read(log):
                await self._lines.put(found)
                self._news.set()
        except ClientError as raised:
            error = raised
        self._logs.ended(log, error)

    async def _arrived(self, until: float) -> AsyncIterator[Line]:
        """What comes until it is time to look again, or until nothing can come any more."""
        while True:
            self._news.clear()
            while not self._lines.empty():
                yield self._lines.get_nowait()
            left = until - time.monotonic()
            if not self._open or left <= 0:
                return
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except asyncio.TimeoutError:
                return
