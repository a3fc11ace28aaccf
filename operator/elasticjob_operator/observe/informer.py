"""Keeps the objects of one resource up to date: list, diff, watch, bookmarks, and a new list after a 410.

Promises:

* An object that was deleted while no watch was open is found by the next list. (kopf's watch does not do
  that: it keeps objects that were deleted while it was down.)
* ``good_since`` says since when no change can have been missed. It is None while there is no watch, and
  starts again after every gap, so that no participant is judged by a silence that was our own (I9).
* A watch that is silent for longer than the interval of bookmarks is reopened, which is no gap; sooner
  (``reopen``) if something else shows that it may be dead: its connection can outlive the API server behind a
  proxy.
* An object that cannot be read does no further harm: its last readable version stays, and all others go on.

The server ends each watch after 4 to 5 minutes. Continuing from the same resource version within a second is
no gap. Nor is a watch that we end ourselves: the missed events come first, and silence counts only after the
API server itself was asked (``ClusterCache.confirm_silence``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic

from elasticjob.core.pauses import exponential
from elasticjob_operator.observe.client import Api, WatchBatch
from elasticjob_operator.observe.errors import ApiError, Forbidden, Gone, NotFound
from elasticjob_operator.observe.fields import version_of
from elasticjob_operator.observe.lists import read_list
from elasticjob_operator.observe.objects import T
from elasticjob_operator.observe.store import Store

_WATCH_SECONDS = (240, 300)
_NO_GAP_SECONDS = 1.0
_MANY, _MANY_SECONDS = 100, 10.0
"""At this rate of events the next one comes at once, unless the watch is late."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_UNAVAILABLE_SECONDS = 300.0
_FOREIGN_FAILURES = 3

Read = Callable[[Mapping[str, Any], T | None], T]
"""Reads an object, which may have been known before."""

log = logging.getLogger(__name__)


class Informer(Generic[T]):
    """See the module. ``optional``: a 403 is tolerated, the resource then stays unknown. ``namespace``: the
    one of which ``path`` lists everything; the store may hold others'. ``foreign``: another controller's
    webhook has a part in each answer; while that fails, nothing waits for this resource."""

    def __init__(
        self,
        api: Api,
        path: str,
        read: Read[T],
        store: Store[T],
        clock: Callable[[], float],
        selector: str = "",
        optional: bool = False,
        namespace: str = "",
        foreign: bool = False,
    ) -> None:
        self._api = api
        self._path = path
        self._read = read
        self.store = store
        self._clock = clock
        self._query = {"labelSelector": selector} if selector else {}
        self._optional = optional
        self._foreign = foreign
        self._namespace = namespace
        self._version = 0
        self._interrupted_at: float | None = None
        self._blind_since = clock()
        self._before = float("-inf")
        self.synced = asyncio.Event()
        """Set once the first list is in, or the resource is known to be unavailable."""
        self.good_since: float | None = None
        """Monotonic time from which on this watch has missed nothing; None while it is not connected."""
        self.last_event_at: float = float("-inf")
        """Monotonic time of the last sign of life: a list, an event, a bookmark."""
        self.gaps = 0
        """How often something may have been missed."""
        self.unavailable = False
        """Whether this resource is done without for now: an optional one that is forbidden or not served, or
        a foreign one that fails."""
        self._taken: deque[float] = deque(maxlen=_MANY)
        """When the last events came."""
        self._expected: deque[tuple[int, float]] = deque()
        """Versions that answers to our own requests have shown, and when; not yet brought by the watch."""
        self._opened_at = float("-inf")
        self._limit: asyncio.Timeout | None = None
        """Ends the watch that is open, or being opened."""

    @property
    def blind_seconds(self) -> float:
        """How long there has been no watch; 0 while there is one."""
        return 0.0 if self.good_since is not None else self._clock() - self._blind_since

    @property
    def path(self) -> str:
        """What is watched."""
        return self._path

    async def run(self) -> None:
        """Keep up to date until cancelled."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                failures = 0
                self._interrupted(clean=True)
            except Gone:
                log.info("%s: the watch has expired; listing again", self._path)
                self._lost()
            except (Forbidden, NotFound) as error:
                self._lost()
                if self._optional:
                    await self._do_without(error)
                else:
                    failures += 1
                    log.error("%s", error)
                    await _back_off(failures)
            except ApiError as error:
                failures = 1 if self.good_since is not None else failures + 1
                self._interrupted(clean=False)
                if self._foreign and failures >= _FOREIGN_FAILURES:
                    self.unavailable = True
                    self.synced.set()
                log.log(logging.WARNING if failures > 1 else logging.INFO, "watch interrupted: %s", error)
                await _back_off(failures)
            except Exception:
                # Any error: a blind operator is worse.
                log.exception("%s: unexpected response; listing again", self._path)
                failures += 1
                self._lost()
                await _back_off(failures)

    def stalled(self) -> None:
        """This process did not run for a while: events may be waiting in a socket."""
        if self.good_since is not None:
            self.good_since = self._clock()
            self.gaps += 1

    def expects(self, version: int) -> None:
        """The answer to a request of ours has shown this version: the watch is to bring it, too."""
        if version > self._version:
            self._expected.append((version, self._clock()))

    async def expect_newest(self) -> None:
        """Expect what there is now. Only where many events come: without any, the watch would seem late
        although there is no news. Raises ApiError."""
        self.late()
        if (
            not self._expected
            and len(self._taken) == _MANY
            and self._clock() - self._taken[0] < _MANY_SECONDS
        ):
            page = await self._api.get(self._path, {**self._query, "limit": "1"})
            self.expects(version_of(page["metadata"]))

    def late(self) -> float:
        """How many seconds the watch is behind what is known to have happened."""
        while self._expected and self._expected[0][0] <= self._version:
            self._expected.popleft()
        return self._clock() - self._expected[0][1] if self._expected else 0.0

    def reopen(self, unless_since: float) -> None:
        """The watch may be dead: open another that goes on from here, unless this one has given a sign of
        life since then, or was opened since."""
        if self._limit is not None and max(self.last_event_at, self._opened_at) < unless_since:
            log.info("%s: the watch may be dead; reopening it", self._path)
            self._limit.reschedule(asyncio.get_running_loop().time())
            self._limit = None

    def interrupted(self) -> None:
        """``run`` was cancelled and will be called again: it goes on from what it knows, after a gap."""
        self._blind()
        self._interrupted_at = None

    def reset(self) -> None:
        """``interrupted``, and nothing that was known is relied on: ``synced`` is set by the next list."""
        self._lost()
        self.synced.clear()

    def _interrupted(self, clean: bool) -> None:
        """The watch has ended: by the server's own timer (``clean``), or at an unknown time."""
        if self.good_since is not None:
            self._interrupted_at = self._clock() if clean else None
            self._before = self.good_since
            self._blind()

    def _lost(self) -> None:
        """Everything may have changed: list again."""
        self._blind()
        self._version = 0
        self._interrupted_at = None

    def _blind(self) -> None:
        """There is no watch."""
        if self.good_since is not None:
            self._blind_since = self._clock()
        self.good_since = None

    def _connected(self) -> None:
        now = self._clock()
        self.last_event_at = now
        self.unavailable = False
        if self._interrupted_at is not None and now - self._interrupted_at < _NO_GAP_SECONDS:
            self.good_since = self._before
        else:
            self.good_since = now
            self.gaps += 1
        self._interrupted_at = None

    async def _do_without(self, error: ApiError) -> None:
        if not self.unavailable:
            log.warning("continuing without it: %s", error)
        self.unavailable = True
        self.synced.set()
        await asyncio.sleep(_UNAVAILABLE_SECONDS * random.uniform(0.8, 1.2))

    async def _list(self) -> None:
        def take(raw: Mapping[str, Any]) -> None:
            self.last_event_at = self._clock()
            self._put(raw)

        present, self._version = await read_list(self._api, self._path, take, self._query)
        self.store.drop_others(present, self._version, self._namespace)
        self.last_event_at = self._clock()
        self.unavailable = False
        self.synced.set()

    async def _watch(self) -> None:
        query = {
            **self._query,
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),
        }
        self._opened_at = self._clock()
        try:
            async with (
                asyncio.timeout(None) as self._limit,
                aclosing(self._api.watch(self._path, query)) as batches,
            ):
                async for batch in batches:
                    if self.good_since is None:
                        self._connected()
                    self._take(batch)
        except TimeoutError:
            pass  # ``reopen``
        finally:
            self._limit = None

    def _take(self, batch: WatchBatch) -> None:
        self.last_event_at = self._clock()
        self._taken.extend([self.last_event_at] * len(batch))
        for kind, raw in batch:
            version = version_of(raw["metadata"])
            if kind == "DELETED":
                meta = raw["metadata"]
                self.store.remove(
                    str(meta.get("namespace", "")), str(meta["name"]), str(meta["uid"]), version
                )
            elif kind != "BOOKMARK":
                self._put(raw)
            self._version = max(self._version, version)

    def _put(self, raw: Mapping[str, Any]) -> None:
        item = read_one(self._path, raw, self.store, self._read)
        if item is not None:
            self.store.put(item)


def read_one(
    path: str,
    raw: Mapping[str, Any],
    store: Store[T],
    read: Read[T],
) -> T | None:
    """The object, slimmed; as it was known (None: not at all) if it can't be read."""
    meta = raw["metadata"]
    namespace, name = str(meta.get("namespace", "")), str(meta["name"])
    known = store.get(namespace, name)
    try:
        return read(raw, known)
    except Exception:
        log.exception("%s: %s/%s cannot be read and is ignored", path, namespace, name)
        return known


async def _back_off(failures: int) -> None:
    await asyncio.sleep(exponential(_FIRST_PAUSE, _LONGEST_PAUSE, failures) * random.uniform(0.5, 1.0))
