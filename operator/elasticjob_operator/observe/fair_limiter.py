"""A limit of concurrent operations that namespaces share fairly, with no queue behind a slow one.

Writes are limited, and so are passes: a thousand at once would block the event loop for seconds and open a
thousand connections. But an operation that waits long for its response uses neither. Behind a tenant's
webhook that takes 9 s, 64 writes of that tenant would hold up all others. So

* an operation that has not ended after ``_QUICK_SECONDS`` gives its turn back and continues without it;
* the waiting namespaces take turns, and no namespace has more than three quarters of them, so that beside a
  single busy namespace there is always a free one;
* at most ``slow`` operations of one namespace that have given their turns back are under way, and at most
  ``slow_in_all`` of all namespaces: where everything is slow, more connections would not help.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_QUICK_SECONDS = 0.5


class FairLimiter:
    """``at_once``: how many have a turn; ``slow``, ``slow_in_all``: how many more may be under way."""

    def __init__(self, at_once: int, slow: int, slow_in_all: int) -> None:
        self._at_once = at_once
        self._share = max(1, at_once * 3 // 4)
        self._slow = slow
        self._slow_in_all = slow_in_all
        self._quick = 0
        self._quick_of: Counter[str] = Counter()
        self._slow_of: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        await self._take(namespace)
        slow = False

        def give_back() -> None:
            nonlocal slow
            slow = True
            self._slow_of[namespace] += 1
            self._free(namespace)

        timer = asyncio.get_running_loop().call_later(_QUICK_SECONDS, give_back)
        try:
            yield
        finally:
            timer.cancel()
            if slow:
                _less(self._slow_of, namespace)
                self._next()
            else:
                self._free(namespace)

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return sum(map(len, self._waiting.values()))

    def idle(self) -> bool:
        """Whether no operation has a turn or waits for one."""
        return not (self._quick or self._quick_of or self._slow_of or any(self._waiting.values()))

    async def _take(self, namespace: str) -> None:
        if namespace not in self._waiting and self._may(namespace):
            self._give(namespace)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._free(namespace)  # it was given at the same moment
            elif turn in (queue := self._waiting.get(namespace, deque())):
                queue.remove(turn)
                self._next()
            raise

    def _may(self, namespace: str) -> bool:
        return (
            self._quick < self._at_once
            and self._quick_of[namespace] < self._share
            and self._slow_of[namespace] < self._slow
            and self._slow_of.total() < self._slow_in_all
        )

    def _give(self, namespace: str) -> None:
        self._quick += 1
        self._quick_of[namespace] += 1

    def _free(self, namespace: str) -> None:
        self._quick -= 1
        _less(self._quick_of, namespace)
        self._next()

    def _next(self) -> None:
        """Give what turns there are to those that wait, one of each namespace after the other."""
        given = True
        while given:
            given = False
            for namespace in list(self._waiting):
                if self._quick >= self._at_once:
                    return
                queue = self._waiting[namespace]
                while queue and queue[0].done():
                    queue.popleft()  # cancelled
                if queue and self._may(namespace):
                    self._give(namespace)
                    queue.popleft().set_result(None)
                    self._waiting.move_to_end(namespace)
                    given = True
                if not queue:
                    del self._waiting[namespace]


def _less(counter: Counter[str], namespace: str) -> None:
    counter[namespace] -= 1
    if not counter[namespace]:
        del counter[namespace]
