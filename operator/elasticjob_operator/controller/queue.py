"""The work queue: which keys need work, and when. Rules and words are those of client-go's workqueue.

* However often a key is added before its work begins, the work is done once.
* A key is never worked on twice at a time. One that is added meanwhile is ready again when the work is done.
* After a failure a key waits, longer each time. News of it shortens the wait.

The queue starts no task and waits for nothing: it calls ``on_ready`` when a key becomes ready. A worker then
begins the work with ``get`` and ends it with ``done``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from elasticjob.core.pauses import exponential

FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 30.0
RETRY_AFTER_NEWS_SECONDS = 1.0
"""News shows that the API server is back: after a failure, a key with news waits no longer than this."""
SHORTEST_DELAY_SECONDS = 0.005
_NEVER = float("inf")

K = TypeVar("K", bound=Hashable)


class Timer(Protocol):
    """Calls back later, unless it is cancelled."""

    def cancel(self) -> None:
        """Do not call back."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""``call_later`` of an event loop."""


@dataclass(frozen=True)
class Work:
    """Work that has begun. ``news``: there is news of the key, and it is not only that its time has come."""

    news: bool


@dataclass
class _Item:
    due_at: float = _NEVER
    """When the key needs work."""
    needed_since: float = _NEVER
    """When it began to need work that has not begun, or has failed."""
    working_for: float = _NEVER
    """``needed_since`` of the work that is under way."""
    news: bool = False
    failures: int = 0
    news_from: float = 0.0
    """After a failure, news makes the key ready no earlier than this."""
    rest_until: float = float("-inf")
    """Nothing makes the key ready earlier than this."""
    timer: Timer | None = None
    timer_at: float = _NEVER


class WorkQueue(Generic[K]):
    """See the module. Closed at first: nothing can be added until ``open``."""

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: CallLater,
        on_ready: Callable[[K], None],
        jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.0),
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._on_ready = on_ready
        self._jitter = jitter
        self._items: dict[K, _Item] = {}
        self._ready: set[K] = set()
        self._working: dict[K, float] = {}
        """When the work on each of these keys began."""
        self.is_open = False

    @property
    def working(self) -> Mapping[K, float]:
        """The keys that are being worked on, and since when."""
        return MappingProxyType(self._working)

    @property
    def depth(self) -> int:
        """How many keys are ready."""
        return len(self._ready)

    def oldest_seconds(self) -> float:
        """How long the key has needed work that has needed it longest. Work that fails does not count."""
        now = self._clock()
        since = (min(item.due_at, item.needed_since, item.working_for) for item in self._items.values())
        return max(0.0, now - min(since, default=now))

    def open(self) -> None:
        """Keys can be added from now on."""
        self.is_open = True

    def close(self) -> None:
        """Drop all keys and accept none. Work that is under way may call ``done`` to no effect."""
        self.is_open = False
        for key in list(self._items):
            self.discard(key)
        self._working.clear()

    def add(self, key: K) -> None:
        """There is news of this key."""
        if not self.is_open:
            return
        item = self._items.setdefault(key, _Item())
        item.news = True
        at = self._clock()
        item.needed_since = min(item.needed_since, at)
        if item.failures and key not in self._working:
            at = max(at, item.news_from)
        self._schedule(key, item, min(item.due_at, at))

    def add_after(self, key: K, seconds: float) -> None:
        """The key needs work after this time, even without news."""
        if not self.is_open:
            return
        item = self._items.setdefault(key, _Item())
        at = self._clock() + max(seconds, SHORTEST_DELAY_SECONDS)
        self._schedule(key, item, min(item.due_at, at))

    def add_rate_limited(self, key: K, at_least: float = 0.0) -> None:
        """The work has failed: the key needs it again after 0.2, 0.4 ... 30 s, but at least ``at_least``."""
        if not self.is_open:
            return
        item = self._items.setdefault(key, _Item())
        item.failures += 1
        item.needed_since = min(item.needed_since, item.working_for)
        pause = exponential(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, item.failures)
        now = self._clock()
        item.news_from = now + max(min(pause, RETRY_AFTER_NEWS_SECONDS), at_least)
        self._schedule(key, item, now + max(pause * self._jitter(), at_least))

    def forget(self, key: K) -> None:
        """The work has succeeded: failures are counted from 0 again."""
        item = self._items.get(key)
        if item is not None:
            item.failures = 0

    def failures(self, key: K) -> int:
        """How many times in a row the work on this key has failed."""
        item = self._items.get(key)
        return 0 if item is None else item.failures

    def has_news(self, key: K) -> bool:
        """Whether there is news of a key since the work on it has begun."""
        item = self._items.get(key)
        return item is not None and item.news

    def get(self, key: K) -> Work | None:
        """Begin the work on a key that is ready; None if it no longer is."""
        if key not in self._ready:
            return None
        self._ready.remove(key)
        self._working[key] = self._clock()
        item = self._items[key]
        work = Work(item.news)
        item.working_for = min(item.due_at, item.needed_since)
        item.due_at, item.news, item.needed_since = _NEVER, False, _NEVER
        return work

    def done(self, key: K, rest_until: float = float("-inf")) -> None:
        """The work has ended. ``rest_until``: the next begins no earlier, even with news."""
        self._working.pop(key, None)
        item = self._items.get(key)
        if item is not None:
            item.rest_until = rest_until
            item.working_for = _NEVER
            self._schedule(key, item, item.due_at)

    def discard(self, key: K) -> None:
        """The key is gone: it needs no work."""
        self._ready.discard(key)
        item = self._items.pop(key, None)
        if item is not None and item.timer is not None:
            item.timer.cancel()

    def _schedule(self, key: K, item: _Item, due_at: float) -> None:
        item.due_at = due_at
        if key in self._working or key in self._ready:
            return
        at = max(due_at, item.rest_until)
        if item.timer is not None:
            if item.timer_at == at:
                return
            item.timer.cancel()
            item.timer = None
        left = at - self._clock()
        if left <= 0:
            self._become_ready(key, item)
        elif at < _NEVER:
            item.timer = self._call_later(left, partial(self._become_ready, key, item))
            item.timer_at = at

    def _become_ready(self, key: K, item: _Item) -> None:
        item.timer = None
        self._ready.add(key)
        self._on_ready(key)
