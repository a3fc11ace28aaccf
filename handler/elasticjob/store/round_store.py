"""The store object that torch's agent is given for one round.

It is a small Python object around the round's PrefixStore. It waits in Python, so that signal handlers run
and a newer round record is noticed. torch uses it for rank assignment (``role_info``, ``assigned_ranks``)
and, on success only, for the exit barrier (``_assign_worker_ranks`` and ``_exit_barrier`` of
torch/distributed/elastic/agent/server/api.py). When the round is over or its store is gone, rank assignment
is answered locally, as torch does for identical workers, and never raises: the agent then starts workers and
stops them at its first ``num_nodes_waiting``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from elasticjob.store.connection import KeyValueStore, StoreConnection
from elasticjob.store.errors import StoreGone

logger = logging.getLogger(__name__)

ROLE_INFO = "torchelastic/role_info/"
ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
EXIT_BARRIER = "torchelastic/agent/terminal_state"
PASSED = "elasticjob/passed"
"""Counts the members that have left the exit barrier: the leader's server lingers for the others."""
COMPLETE_SECONDS = 2.0
"""When the job is Complete all members are in the exit barrier: it passes within this time, or its leader has
gone. An agent that left at once would leave a call behind that ends in the middle of its interpreter's exit.
"""

T = TypeVar("T")
Value = str | bytes


class RoundStore:
    """torch's view of the round's store.

    ``end_reason`` returns why the round is over, "" while it is not. ``finished`` is called when torch enters
    its exit barrier, which it does only when all local workers have succeeded. ``job_complete`` returns
    whether the job is Complete.
    """

    def __init__(
        self,
        connection: StoreConnection,
        own: bool,
        group_rank: int,
        size: int,
        end_reason: Callable[[], str],
        finished: Callable[[], None],
        job_complete: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._own = own
        self.group_rank = group_rank
        self._size = size
        self._end_reason = end_reason
        self._finished = finished
        self._job_complete = job_complete
        self._timeout = timedelta(seconds=300)
        self._role_info = b""
        self._complete_since: float | None = None
        self.degraded = ""
        self.passed = False

    @property
    def timeout(self) -> timedelta:
        """torch reads and sets this; the waits here end with the round, not with a time."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """See ``timeout``."""
        self._timeout = timeout

    def set(self, key: str, value: Value) -> None:
        """Set a key."""
        if key.startswith(ROLE_INFO):
            self._role_info = value if isinstance(value, bytes) else value.encode()
            self._or_locally(lambda store: store.set(key, value), None)
        else:
            self._call(lambda store: store.set(key, value))

    def get(self, key: str) -> bytes:
        """The value of a key; waits for it."""
        if key.startswith(EXIT_BARRIER):
            self.wait([key])  # so waits torch 2.4, whose barrier has no use for the value
            return b""
        if key.startswith(ASSIGNED_RANKS):
            return self._or_locally(lambda store: self._waited(store, key), self._assign_locally())
        return self._call(lambda store: self._waited(store, key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of the keys; waits for them."""
        if keys and keys[0].startswith(ROLE_INFO):
            return self._or_locally(
                lambda store: self._waited_all(store, keys), [self._role_info] * len(keys)
            )
        return self._call(lambda store: self._waited_all(store, keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Set several keys."""
        if keys and keys[0].startswith(ASSIGNED_RANKS):
            self._or_locally(lambda store: _multi_set(store, keys, values), None)
        else:
            self._call(lambda store: _multi_set(store, keys, values))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns its new value."""
        if key.startswith(EXIT_BARRIER):
            self._finished()
        return self._call(lambda store: int(store.add(key, amount)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for keys. In the exit barrier without limit, until all have passed or the round is over."""
        del timeout
        if not any(key.startswith(EXIT_BARRIER) for key in keys):
            self._call(lambda store: self._connection.wait_for(store, keys, self._own))
            return

        def work(store: KeyValueStore) -> None:
            self._connection.wait_for(store, keys, self._own)
            store.add(PASSED, 1)

        try:
            self._connection.call(work, self._barrier_end_reason)
        except StoreGone as gone:
            if not self._job_complete():
                raise RuntimeError(f"left the exit barrier: {gone}") from None
        self.passed = True

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._call(lambda store: bool(store.check(list(keys))))

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Set the key if it has the expected value; returns its value."""
        return self._call(lambda store: bytes(store.compare_set(key, expected, desired)))

    def delete_key(self, key: str) -> bool:
        """Delete a key; returns whether it was there."""
        return self._call(lambda store: bool(store.delete_key(key)))

    def all_passed(self) -> bool:
        """Whether every member has left the exit barrier. Raises StoreGone."""
        return self._connection.call(lambda store: int(store.add(PASSED, 0)), lambda: "") >= self._size

    def _barrier_end_reason(self) -> str:
        if not self._job_complete():
            return self._end_reason()
        now = time.monotonic()
        if self._complete_since is None:
            self._complete_since = now
        return "the job is complete" if now - self._complete_since > COMPLETE_SECONDS else ""

    def _call(self, work: Callable[[KeyValueStore], T]) -> T:
        return self._connection.call(work, self._end_reason)

    def _or_locally(self, work: Callable[[KeyValueStore], T], answer: T) -> T:
        self.degraded = self.degraded or self._end_reason()
        if not self.degraded:
            try:
                return self._call(work)
            except StoreGone as gone:
                self.degraded = str(gone)
                logger.warning(
                    "the round is over, so workers get provisional ranks and will be stopped soon: %s", gone
                )
        return answer

    def _waited(self, store: KeyValueStore, key: str) -> bytes:
        self._connection.wait_for(store, [key], self._own)
        return bytes(store.get(key))

    def _waited_all(self, store: KeyValueStore, keys: Sequence[str]) -> list[bytes]:
        self._connection.wait_for(store, keys, self._own)
        return [bytes(value) for value in store.multi_get(list(keys))]

    def _assign_locally(self) -> bytes:
        """[base rank, world size, base role rank, role size], as for identical workers."""
        local = int(json.loads(self._role_info)["local_world_size"]) if self._role_info else 1
        first, whole = self.group_rank * local, self._size * local
        return json.dumps([first, whole, first, whole]).encode()


def _multi_set(store: KeyValueStore, keys: Sequence[str], values: Sequence[Value]) -> None:
    store.multi_set(list(keys), [v if isinstance(v, str) else v.decode() for v in values])
