"""Both clients for the same test: what one is asked, the other is asked too."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from inspect import isawaitable
from typing import Any

from elasticjob_client import AsyncJobs, Jobs

Ask = Callable[[Any], Any]
"""What is asked of a client, such as ``lambda jobs: jobs.get("mnist")``."""


def sync(ask: Ask, said: list[str], got: list[Any]) -> Any:
    """``said``: the notices; ``got``: what comes bit by bit, which is returned in the end."""
    with Jobs(notice=said.append) as jobs:
        found = ask(jobs)
        if not isinstance(found, Iterator):
            return found
        for one in found:
            got.append(one)
        return got


def on_asyncio(ask: Ask, said: list[str], got: list[Any]) -> Any:
    """The same of the other client."""

    async def run() -> Any:
        async with AsyncJobs(notice=said.append) as jobs:
            found = ask(jobs)
            if isawaitable(found):
                return await found
            assert isinstance(found, AsyncIterator)
            async for one in found:
                got.append(one)
            return got

    return asyncio.run(run())


BOTH = (sync, on_asyncio)


class Begun:
    """A call in a thread of its own."""

    def __init__(self, client: Callable[[Ask, list[str], list[Any]], Any], ask: Ask) -> None:
        self.said: list[str] = []
        self.got: list[Any] = []
        self._result: Future[Any] = Future()
        self._call = (ask, self.said, self.got)
        self._client = client
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.set_result(self._client(*self._call))
        except Exception as error:  # noqa: BLE001 - the test judges it
            self._result.set_exception(error)

    def result(self) -> Any:
        return self._result.result(60)


def until(condition: Callable[[], Any]) -> None:
    """Wait for what can be observed."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it has not come in a minute"
        time.sleep(0.01)
