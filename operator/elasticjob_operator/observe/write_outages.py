"""Whether the API server accepts writes, which decides what the silence of a Lease means.

A participant that cannot write is not silent. But a failed request of ours does not prove that no participant
can write: the cause may be one tenant's webhook. So a failure makes it uncertain whether writes succeed,
until the next write that does, whether it is ours or one that the watch shows. If it stays uncertain for a
while, that is an outage, and all silence timers start again at its end.

This is tracked for the API server as a whole, and for writing Leases in each namespace. While it is
uncertain, silence timers are frozen, so that no participant is judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OUTAGE_SECONDS = 3.0
"""How long it must stay uncertain; meanwhile the operator itself tries what has failed
(``write_outage_probe``)."""

_LEASES = re.compile(r"/namespaces/([^/]+)/leases(?:/|$)")
_NEVER = float("-inf")


@dataclass
class _Scope:
    """``uncertain_since``: since when no write is known to have succeeded; ``noticed_at``: when a failure
    showed that; ``last_success``: when a write last succeeded."""

    uncertain_since: float | None = None
    noticed_at: float = 0.0
    stored: bool = False
    last_success: float = _NEVER
    outage_ended_at: float = _NEVER
    outages: int = 0

    def failed(self, began: float, now: float, stored: bool) -> None:
        if self.last_success >= began and not stored:
            return
        if self.uncertain_since is None:
            self.uncertain_since, self.noticed_at, self.stored = began, now, stored
        self.stored = self.stored or stored

    def got_through(self, now: float, stored: bool) -> None:
        self.last_success = now
        if self.uncertain_since is None or (self.stored and not stored):
            return
        if self.is_outage(now):
            self.outage_ended_at = now
            self.outages += 1
        self.uncertain_since, self.stored = None, False

    def is_outage(self, now: float) -> bool:
        return self.uncertain_since is not None and now - self.noticed_at > OUTAGE_SECONDS


class WriteOutages:
    """See the module. Times are monotonic; the caller passes them."""

    def __init__(self) -> None:
        self.last_unanswered = _NEVER
        """When the latest request began that got no answer at all: watches that have been silent since may be
        dead."""
        self._server = _Scope()
        self._leases: dict[str, _Scope] = {}

    def failed(self, path: str, began: float, now: float, stored: bool = False) -> None:
        """A request got no proper answer. ``stored``: the API server says that it could not be stored, so
        that only a write that was stored shows that this is over."""
        self._server.failed(began, now, stored)
        namespace = _namespace(path)
        if namespace is not None:
            self._leases.setdefault(namespace, _Scope()).failed(began, now, stored)

    def no_answer(self, path: str, began: float, now: float) -> None:
        """Nothing came back."""
        self.last_unanswered = max(self.last_unanswered, began)
        self.failed(path, began, now)

    def got_through(self, path: str, now: float, stored: bool = True) -> None:
        """A write was accepted. ``stored``: and it is in etcd."""
        self._server.got_through(now, stored)
        namespace = _namespace(path)
        if namespace is not None:
            self.lease_written(namespace, now, stored)

    def lease_written(self, namespace: str, now: float, stored: bool = True) -> None:
        """A Lease in this namespace was written."""
        self._server.got_through(now, stored)
        scope = self._leases.get(namespace)
        if scope is not None:
            scope.got_through(now, stored)

    def uncertain_since(self, namespace: str) -> float | None:
        """When writes of Leases there may have begun to fail; None: they succeed."""
        found = [
            scope.uncertain_since for scope in self._about(namespace) if scope.uncertain_since is not None
        ]
        return min(found, default=None)

    def is_outage(self, namespace: str, now: float) -> bool:
        """Whether that has lasted so long that no silence counts."""
        return any(scope.is_outage(now) for scope in self._about(namespace))

    def outages(self, namespace: str) -> int:
        """How many outages have ended."""
        return sum(scope.outages for scope in self._about(namespace))

    def good_since(self, namespace: str) -> float:
        """When the last outage has ended."""
        return max(scope.outage_ended_at for scope in self._about(namespace))

    def to_be_probed(self) -> tuple[bool, tuple[str, ...]]:
        """Where it is uncertain: for the API server, and for the Leases of which namespaces."""
        uncertain = tuple(name for name, scope in self._leases.items() if scope.uncertain_since is not None)
        return self._server.uncertain_since is not None, uncertain

    def _about(self, namespace: str) -> tuple[_Scope, ...]:
        own = self._leases.get(namespace)
        return (self._server,) if own is None else (self._server, own)


def _namespace(path: str) -> str | None:
    found = _LEASES.search(path)
    return None if found is None else found[1]
