"""A simulated API server with Leases: writes with preconditions, watches that lag, get stuck and miss
deletions, answers that are lost, times in which it is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elasticjob.api.errors import ApiError, Conflict, Forbidden, NotFound, Unavailable
from elasticjob.peers.round_lease import RoundLease
from tests.simulation.kernel import Host, Kernel, Reply, Request

ANSWER_SECONDS = 2.0
"""After how long a request without an answer has failed (the handler's are longer; nothing depends on it)."""


@dataclass(frozen=True)
class Stored:
    """A Lease."""

    name: str
    version: int
    holder: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    owners: frozenset[str] = frozenset()
    deleted: bool = False
    created: float = 0.0

    def as_round(self) -> RoundLease:
        """As a participant sees the round Lease."""
        return RoundLease(
            str(self.version),
            self.holder,
            self.annotations.get("round", ""),
            self.annotations.get("state", ""),
        )


class Watch:
    """``take`` gets the present objects when it is opened, then each change, in order, each some time
    later."""

    def __init__(
        self,
        api: Api,
        host: Host,
        only: str,
        take: Callable[[list[Stored] | Stored], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._api, self.host, self._only, self._take, self._failed = api, host, only, take, failed
        self._due = self._opened = 0.0
        self.open = self.stuck = False
        api.kernel.after(api.latency(), self._begin)

    def close(self) -> None:
        """It brings no more."""
        self.open = False
        self._take, self._failed = lambda _: None, lambda: None
        self._api.watches.pop(self, None)

    def fail(self) -> None:
        """It ends with an error, and is opened again as soon as that is possible."""
        self.open = False
        self._api.watches.pop(self, None)
        self._failed()
        self._api.kernel.after(self._api.kernel.between(0.2, 1.0), self._begin)

    def changed(self, stored: Stored) -> None:
        """The server has a change for it."""
        if self._only in ("", stored.name):
            self._send(stored)

    def _begin(self) -> None:
        api = self._api
        if not self.host.alive:
            return
        if api.away or api.forbids or self.host in api.cut_off:
            self._failed()
            api.kernel.after(api.kernel.between(0.5, 3.0), self._begin)
            return
        self.open, self.stuck, self._opened = True, False, api.kernel.now
        api.watches[self] = None
        if not self._only:
            self._due = max(self._due, api.kernel.now + api.list_seconds)
        self._send([s for s in api.leases.values() if self._only in ("", s.name)])

    @property
    def healthy_seconds(self) -> float:
        """How long it has had no gap, as its host knows: not whether it hangs."""
        return self._api.kernel.now - self._opened if self.open else 0.0

    @property
    def deaf(self) -> bool:
        """Whether what happens now does not arrive soon: it hangs, or its list is under way."""
        return self.stuck or self._due > self._api.kernel.now + self._api.lag

    def _send(self, what: list[Stored] | Stored) -> None:
        kernel = self._api.kernel
        if self.stuck:
            return
        self._due = max(self._due, kernel.now + self._api.latency() * self._api.lag)
        kernel.after(self._due - kernel.now, self._deliver, what)

    def _deliver(self, what: list[Stored] | Stored) -> None:
        if not self.host.alive or not self.open:
            return
        if self.host.frozen:
            self.host.when_thawed(lambda: self._deliver(what))
            return
        self._take(what)

    def break_off(self, seconds: float = 0.0) -> None:
        """It brings nothing more, and is opened again after these or some seconds: what happened meanwhile is
        missed."""
        self.stuck = True
        kernel = self._api.kernel

        def again() -> None:
            if self in self._api.watches:
                self._api.watches.pop(self, None)
                self._begin()

        kernel.after(seconds or kernel.between(1.0, 15.0), again)


class Api:
    """``on_write`` hears of each write, with what was there before; ``on_patch`` of each PATCH that is about
    to be carried out, with what is there and the version that it asks for."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.leases: dict[str, Stored] = {}
        self.watches: dict[Watch, None] = {}  # in the order in which they were opened
        self.away = self.forbids = False
        self.cut_off: set[Host] = set()
        self.lossy = 0.0
        """The chance that a request, or its answer, is lost."""
        self.lag = 1.0
        self.list_seconds = 0.0
        """How much longer a list of all Leases takes; what has changed since then comes after it."""
        self.on_write: Callable[[Stored | None, Stored], None] = lambda _before, _after: None
        self.on_patch: Callable[[Stored, str], None] = lambda _before, _version: None
        self.requests = 0
        self._version = 0

    def cut(self, host: Host, watches: bool) -> None:
        """No request of this host arrives; nor does what its watches bring, if ``watches``."""
        self.cut_off.add(host)
        for watch in [w for w in self.watches if w.host is host] if watches else ():
            watch.break_off()

    def go_away(self) -> None:
        """It is stopped: watches end, and no request arrives."""
        self.away = True
        for watch in list(self.watches):
            watch.fail()

    def latency(self) -> float:
        """Of one way."""
        return self.kernel.between(0.001, 0.02)

    def call(self, host: Host, action: Callable[[], Any]) -> Request:
        """A request; its answer is what ``action`` returns or the ApiError that it raises."""
        kernel = self.kernel
        self.requests += 1

        def start(reply: Reply) -> None:
            def arrive() -> None:
                if self.away or host in self.cut_off or kernel.rng.random() < self.lossy:
                    kernel.after(ANSWER_SECONDS, reply, Unavailable("no answer"))
                    return
                try:
                    if self.forbids:
                        raise Forbidden("the rights are gone", 403)
                    answer = action()
                except ApiError as error:
                    answer = error
                if kernel.rng.random() < self.lossy:
                    kernel.after(ANSWER_SECONDS, reply, Unavailable("the answer was lost"))
                else:
                    kernel.after(self.latency(), reply, answer)

            kernel.after(self.latency(), arrive)

        return start

    # -- what is carried out at once -----------------------------------------------------------------------

    def read(self, name: str) -> Stored:
        """Raises NotFound."""
        if name not in self.leases:
            raise NotFound(name, 404)
        return self.leases[name]

    def create(self, name: str, **fields: Any) -> Stored:
        """Raises Conflict."""
        if name in self.leases:
            raise Conflict(name, 409)
        return self._store(None, Stored(name, 0, **fields))

    def patch(self, name: str, version: str, **fields: Any) -> Stored:
        """``version``: the precondition, "" for none. Raises NotFound, Conflict."""
        before = self.read(name)
        if version and version != str(before.version):
            raise Conflict(name, 409)
        self.on_patch(before, version)
        return self._store(before, replace(before, **fields))

    def apply(self, name: str, annotations: Mapping[str, str], **fields: Any) -> Stored:
        """Make it, or add to its annotations."""
        before = self.leases.get(name)
        merged = {**(before.annotations if before is not None else {}), **annotations}
        base = before if before is not None else Stored(name, 0, "")
        return self._store(before, replace(base, annotations=merged, **fields))

    def delete(self, name: str) -> None:
        """By a user, or with its owner."""
        gone = self.leases.pop(name, None)
        if gone is not None:
            self._version += 1
            self._tell(replace(gone, version=self._version, deleted=True))

    def collect(self, uid: str) -> None:
        """The owner with this UID is gone: so is what it owned alone."""
        for stored in list(self.leases.values()):
            if uid in stored.owners:
                rest = stored.owners - {uid}
                if rest:
                    self.leases[stored.name] = replace(stored, owners=rest)
                else:
                    self.delete(stored.name)

    def _store(self, before: Stored | None, after: Stored) -> Stored:
        self._version += 1
        created = before.created if before is not None else self.kernel.now
        after = replace(after, version=self._version, created=created)
        self.leases[after.name] = after
        self.on_write(before, after)
        self._tell(after)
        return after

    def _tell(self, stored: Stored) -> None:
        for watch in list(self.watches):
            watch.changed(stored)
