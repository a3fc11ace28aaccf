"""An answer that is made once for all who ask for it at the same time, and kept for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_REST = 4.0
"""Making an answer takes at most a fifth of the time: one that took a second is kept for four."""


class SharedAnswer(Generic[T]):
    """``make`` is never called twice at a time. ``seconds``: how long an answer is kept at least. An error
    goes to all who wait, and is not kept."""

    def __init__(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._seconds = seconds
        self._monotonic = monotonic
        self._making: asyncio.Task[T] | None = None
        self._until = float("-inf")

    async def get(self) -> T:
        """The answer. Who gives up waiting does not disturb the others."""
        old = self._making is not None and self._making.done() and self._monotonic() >= self._until
        if self._making is None or old:
            self._making = asyncio.create_task(self._run())
        return await asyncio.shield(self._making)

    async def _run(self) -> T:
        began = self._monotonic()
        self._until = float("-inf")
        made = await self._make()
        now = self._monotonic()
        self._until = now + max(self._seconds, _REST * (now - began))
        return made
