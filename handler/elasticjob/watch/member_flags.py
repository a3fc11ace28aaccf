"""Flags that the members of a round raise, one by one, in the round's store, and what its leader reads of
them."""

from __future__ import annotations

import time
from collections.abc import Callable

from elasticjob.store.connection import KeyValueStore
from elasticjob.store.missing_keys import missing_ranks

FEW_SECONDS = 60.0
"""How long some members may have raised a flag and others not, before the leader says which have not."""
MAX_MISSING = 64
"""How many of them it looks for."""
SOME = "some"
"""In place of a rank, at the end of a key: some member has raised this flag."""


class MemberFlag:
    """A flag that each member raises once in a round: under ``key``, as soon as ``condition`` is true.
    ``on_all`` is called on the leader, once, when all members have raised it. If ``on_few`` is given, it is
    called there, once, with the ranks that have not raised it ``FEW_SECONDS`` after the leader knows of one
    that has; the first MAX_MISSING."""

    def __init__(
        self,
        key: str,
        condition: Callable[[], bool],
        on_all: Callable[[], None],
        on_few: Callable[[list[int]], None] | None = None,
    ) -> None:
        self.key = key
        self.on_all = on_all
        self.on_few = on_few
        self.raised = False
        """This agent has raised it."""
        self.done = False
        """A member has stored it; on the leader, ``on_all`` was called."""
        self._condition = condition
        self._some_since: float | None = None

    def update(self) -> None:
        """Ask for the condition, until it is true."""
        self.raised = self.raised or self._condition()

    @property
    def due(self) -> bool:
        """Whether a member still has to store it, or the leader to find it stored by the others."""
        return self.raised and not self.done

    def store(self, store: KeyValueStore, rank: int) -> None:
        """Raise it, as a member that is not the leader."""
        store.set(f"{self.key}{rank}", "1")
        if self.on_few is not None:
            store.set(f"{self.key}{SOME}", "1")
        self.done = True

    def raised_by(self, store: KeyValueStore, ranks: range) -> bool:
        """Whether all these have raised it."""
        return store.check([f"{self.key}{rank}" for rank in ranks])

    def missing(self, store: KeyValueStore, ranks: range) -> list[int]:
        """On the leader: which members have not raised it although others have, and that for long enough."""
        if self.on_few is None or self.done:
            return []
        if self._some_since is None:
            if self.raised or store.check([f"{self.key}{SOME}"]):
                self._some_since = time.monotonic()
            return []
        if time.monotonic() - self._some_since < FEW_SECONDS:
            return []
        keys = [f"{self.key}{rank}" for rank in ranks]
        own = [] if self.raised else [0]
        return (own + missing_ranks(store.check, keys, MAX_MISSING, ranks.start))[:MAX_MISSING]
