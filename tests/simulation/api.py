"""The API server: objects with versions, watches that lag, drop, duplicate and relist, and outages.

Values are immutable. ``version`` is the position in the log, as in etcd; each object has a UID. Nothing
is read here but what a request or a watch would bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.simulation.kernel import Host, Kernel, Reply, Request

Key = tuple[str, str]
"""(kind, name): ("job", ""), ("round", ""), ("lease", pod), ("pod", name), ("node", name)."""

JOB_KEY: Key = ("job", "")
ROUND_KEY: Key = ("round", "")
LIST_KEY: Key = ("list", "")

DEAD_SECONDS = 15.0, 75.0
"""For so long nothing shows that a stranded watch is dead: until bookmarks that were due do not come."""


class Item(NamedTuple):
    """One version of one object."""

    value: Any
    version: int
    uid: str


class Conflict(Exception):
    """409: the version or the UID is not the one that was expected, or the name is taken."""


class NotFound(Exception):
    """404."""


class Unavailable(Exception):
    """No answer, or an error that says nothing about whether the write was carried out. ``seconds``: after
    which it comes."""

    def __init__(self, text: str, seconds: float = 0.0) -> None:
        super().__init__(text)
        self.seconds = seconds


class Refused(Exception):
    """403 or 422: the write is not allowed."""


@dataclass
class Weather:
    """How the API server behaves now."""

    down: bool = False
    slow: bool = False
    loses_answers: bool = False
    lag: float = 0.0


class Api:
    """Truth and its watchers. ``committed`` hears of every commit, at once: controllers and the oracle."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.weather = Weather()
        self.items: dict[Key, Item] = {}
        self.log: list[tuple[Key, Item | None]] = []
        self.watches: list[Watch] = []
        self.committed: list[Callable[[Key, Item | None, Item | None], None]] = []
        self.admission: Admission = lambda *_: None
        self._serves: Client | None = None

    def put(self, key: Key, value: Any, uid: str = "", version: int | None = None) -> Item:
        """Create or replace an object. ``version``: only this one may be replaced."""
        old = self.items.get(key)
        if version is not None:
            if old is None:
                raise NotFound(f"{key}")
            if old.version != version:
                raise Conflict(f"{key} has version {old.version}, not {version}")
        item = Item(value, len(self.log) + 1, uid or (old.uid if old else f"uid-{len(self.log)}"))
        self._commit(key, old, item)
        return item

    def create(self, key: Key, value: Any, uid: str = "") -> Item:
        """Create an object; its name must be free."""
        if key in self.items:
            raise Conflict(f"{key} is there already")
        return self.put(key, value, uid)

    def remove(self, key: Key, uid: str = "") -> None:
        """Delete an object, this very one if ``uid`` is given."""
        old = self.items.get(key)
        if old is None:
            raise NotFound(f"{key}")
        if uid and old.uid != uid:
            raise Conflict(f"{key} has another UID")
        self._commit(key, old, None)

    def get(self, key: Key) -> Item:
        """The object, read from etcd. Raises NotFound."""
        item = self.items.get(key)
        if item is None:
            raise NotFound(f"{key}")
        return item

    def request(self, client: Client, work: Callable[[], Any]) -> Request:
        """A request of this client: carried out after a while, answered after another."""

        def begin(reply: Reply) -> None:
            self.kernel.after(self._latency(), serve, reply)

        def serve(reply: Reply) -> None:
            if self.weather.down or not client.reaches_api():
                patience = self.kernel.between(0.2, 8.0)
                self.kernel.after(patience, reply, Unavailable("the API server does not answer"))
                return
            self._serves = client
            try:
                answer = work()
            except (Conflict, NotFound, Refused, Unavailable) as error:
                answer = error
            finally:
                self._serves = None
            if isinstance(answer, Unavailable):
                self.kernel.after(answer.seconds, reply, answer)
                return
            if self.weather.loses_answers and self.kernel.rng.random() < 0.5:
                answer = Unavailable("the answer was lost")
            self.kernel.after(self._latency(), reply, answer)

        return begin

    def drop_watches(self) -> None:
        """Every stream breaks."""
        for watch in self.watches:
            watch.break_off()

    def _latency(self) -> float:
        between = self.kernel.between
        return between(1.0, 10.0) if self.weather.slow else between(0.002, 0.03)

    def _commit(self, key: Key, old: Item | None, item: Item | None) -> None:
        refusal = None if self._serves is None else self.admission(self._serves, key, old, item)
        if refusal is not None:
            raise refusal
        if item is None:
            self.items.pop(key, None)
        else:
            self.items[key] = item
        self.log.append((key, item))
        for watch in self.watches:
            watch.hear(len(self.log), key, item)
        for hook in self.committed:
            hook(key, old, item)


Admission = Callable[["Client", Key, Item | None, Item | None], Exception | None]
"""Told which client is about to write what, and what was there; what it returns is the answer instead."""


class Client(Host):
    """A host that talks to the API server."""

    def reaches_api(self) -> bool:
        """Whether its path to the API server is whole."""
        return True


class Watch:
    """One client's stream of the objects that ``wants``; what comes is given to ``take`` in order.

    ``take(key, item, version)``: item None for a deletion. ``connected(relisted, seconds)``: the stream is
    there again after so many seconds; relisted with everything that there is.
    """

    def __init__(
        self,
        api: Api,
        client: Client,
        wants: Callable[[Key], bool],
        take: Callable[[Key, Item | None, int], None],
        relist: Callable[[dict[Key, Item], int], None],
        connected: Callable[[float], None],
        may_be_old: bool,
    ) -> None:
        self._api = api
        self._client = client
        self._wants = wants
        self._take = take
        self._relist = relist
        self._connected = connected
        self._may_be_old = may_be_old
        self.good = False
        self.version = 0
        self.last_event_at = 0.0
        self._stranded_at: float | None = None
        self._dead_times: list[tuple[float, float]] = []
        self.broken_times: list[tuple[float, float]] = []
        """From when until when it was not connected; only where that was for longer than a second."""
        self._epoch = 0
        self._due = 0.0
        self._inbox: list[tuple[Key, Item | None, int]] = []
        self._broken_at = api.kernel.now
        self._tries = 0
        api.watches.append(self)
        api.kernel.after(api.kernel.between(0.005, 0.05), self._connect, 0)

    @property
    def lags(self) -> bool:
        """Whether what is on its way takes longer than usual."""
        return not self.good or self._due > self._api.kernel.now + 0.1

    def close(self) -> None:
        """The client is gone."""
        self._revive()
        self._epoch += 1
        self.good = False
        if self in self._api.watches:
            self._api.watches.remove(self)

    def break_off(self) -> None:
        """The stream ends; what was on its way is lost."""
        if self.good:
            self.good = False
            self._broken_at = self._api.kernel.now
        self._epoch += 1
        self._inbox.clear()
        self._tries = 0
        self._api.kernel.after(self._api.kernel.between(0.1, 1.0), self._connect, self._epoch)

    def strand(self) -> None:
        """Nothing comes any more, and nothing shows it but that, at last, bookmarks do not come either."""
        if self.good and self._stranded_at is None:
            self._stranded_at = self._api.kernel.now
            self._epoch += 1
            self._inbox.clear()
            self._api.kernel.after(self._api.kernel.between(*DEAD_SECONDS), self._miss_bookmarks, self._epoch)

    @property
    def dead_times(self) -> tuple[tuple[float, float], ...]:
        """From when until when it was stranded."""
        now = () if self._stranded_at is None else ((self._stranded_at, float("inf")),)
        return (*self._dead_times, *now)

    def _revive(self) -> None:
        if self._stranded_at is not None:
            self._dead_times.append((self._stranded_at, self._api.kernel.now))
            self._stranded_at = None

    def _miss_bookmarks(self, epoch: int) -> None:
        since = self._stranded_at
        if epoch == self._epoch and since is not None:
            self.break_off()
            self._broken_at = since

    def reopen(self) -> None:
        """The client opens another that goes on from here."""
        if self.good:
            self.good, self._broken_at, self._tries = False, self._api.kernel.now, 0
            self._epoch += 1
            self._inbox.clear()
            self._api.kernel.after(self._api.kernel.between(0.005, 0.05), self._connect, self._epoch)

    def hear(self, version: int, key: Key, item: Item | None) -> None:
        """The server has a new version of an object."""
        if self.good and self._stranded_at is None and self._wants(key):
            self._post(key, item, version)
            if self._api.kernel.rng.random() < 0.01:
                self._post(key, item, version)

    def drain(self) -> None:
        """Take what has come while the client stood still."""
        if not self._client.alive:
            return
        if self._client.frozen:
            self._client.when_thawed(self.drain)
            return
        inbox, self._inbox = self._inbox, []
        self.last_event_at = self._api.kernel.now
        for key, item, version in inbox:
            self.version = max(self.version, version)
            self._take(key, item, version)

    def _post(self, key: Key, item: Item | None, version: int) -> None:
        kernel = self._api.kernel
        lag = self._api.weather.lag
        delay = kernel.between(0.002, 0.03) + (kernel.between(0.0, lag) if lag else 0.0)
        self._due = max(self._due, kernel.now + delay)
        kernel.after(self._due - kernel.now, self._arrive, self._epoch, key, item, version)

    def _arrive(self, epoch: int, key: Key, item: Item | None, version: int) -> None:
        if epoch != self._epoch:
            return
        if not self._client.reaches_api():
            self.break_off()
            return
        self._inbox.append((key, item, version))
        if len(self._inbox) == 1 or not self._client.frozen:
            self.drain()

    def _connect(self, epoch: int) -> None:
        if epoch != self._epoch or not self._client.alive:
            return
        api, kernel = self._api, self._api.kernel
        if self._client.frozen:
            self._client.when_thawed(lambda: self._connect(epoch))
            return
        if api.weather.down or not self._client.reaches_api():
            self._tries += 1
            kernel.after(min(5.0, 0.2 * 2**self._tries) * kernel.between(0.5, 1.0), self._connect, epoch)
            return
        self._tries = 0
        self._revive()
        self.good, self.last_event_at = True, kernel.now
        gone = self.version == 0 or kernel.rng.random() < 0.1
        if gone:
            at = len(api.log)
            if self._may_be_old:
                at = max(0, at - kernel.rng.randrange(12)) if kernel.rng.random() < 0.5 else at
            self.version = at
            self._relist(dict(self._as_of(at)), at)
        if kernel.now - self._broken_at > 1.0:
            self.broken_times.append((self._broken_at, kernel.now))
        self._connected(kernel.now - self._broken_at)
        for position in range(self.version, len(api.log)):
            key, item = api.log[position]
            if self._wants(key):
                self._post(key, item, position + 1)

    def _as_of(self, position: int) -> Iterable[tuple[Key, Item]]:
        if position == len(self._api.log):
            return [(key, item) for key, item in self._api.items.items() if self._wants(key)]
        state: dict[Key, Item] = {}
        for key, item in self._api.log[:position]:
            if self._wants(key):
                if item is None:
                    state.pop(key, None)
                else:
                    state[key] = item
        return state.items()
