"""Calls of a store that the caller can abandon.

Any call of a TCPStore client may block for ever inside C++ when its server is frozen (a timed-out wait
still expects the answer to its cancellation, and prints to stderr), and a main thread that blocks there
runs no signal handler. So every call runs in a thread of its own connection, and the caller waits in
Python: for the answer, or until it has a reason to go on without it. A thread that is stuck is left
behind with its connection; it ends when the server does.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from torch.distributed import PrefixStore, TCPStore

from elasticjob.store.errors import CannotConnect, StoreGone

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""How long to wait for a thread that was told to end."""
FOR_EVER = timedelta(days=30)
OWN_POLL_SECONDS = (0.001, 0.02)
"""A look into a server of our own costs 15 us; the longer it waits the rarer it looks."""


def _closed() -> TCPStore:
    raise StoreGone("given up")


class KeyValueStore(Protocol):
    """What is used of torch's stores; its own type stubs leave half of it out."""

    def set(self, key: str, value: str | bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...
    def multi_set(self, keys: list[str], values: list[str] | list[bytes]) -> None: ...
    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes: ...
    def delete_key(self, key: str) -> bool: ...


class StoreCall(Generic[T]):
    """One call on its way through a connection's thread. ``done`` is set under the condition ``changed`` of
    the connection."""

    def __init__(self, work: Callable[[KeyValueStore], T]) -> None:
        self.work = work
        self.done = False
        self._value: T | None = None
        self._error: Exception | None = None

    def run(self, store: Callable[[], KeyValueStore]) -> None:
        """Do the work; errors are kept for the caller that asks for the result, without the frames, which
        hold the store and this."""
        try:
            self._value = self.work(store())
        except (StoreGone, CannotConnect) as error:
            self._error = error.with_traceback(None)
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            self._error = StoreGone(str(error))

    def result(self) -> T:
        """What the call returned. Raises StoreGone for whatever went wrong, but for CannotConnect."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class StoreConnection:
    """One connection to a round's store with the thread that alone uses it.

    ``changed`` is notified when a call has ended; it is the condition on which the caller waits for other
    things too (a newer record).
    """

    def __init__(self, open_store: Callable[[], TCPStore], prefix: str, changed: threading.Condition) -> None:
        self._open = open_store
        self._prefix = prefix
        self._changed = changed
        self._calls: queue.SimpleQueue[StoreCall[Any] | None] = queue.SimpleQueue()
        self.closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[KeyValueStore], T]) -> StoreCall[T]:
        """Begin a call; ``changed`` is notified when it is done. The first starts the thread."""
        call = StoreCall(work)
        self._calls.put(call)
        with self._starting:
            if self._thread is None and not self.closed:
                self._thread = threading.Thread(target=self._run, name="elasticjob-store", daemon=True)
                self._thread.start()
        return call

    def call(self, work: Callable[[KeyValueStore], T], end_reason: Callable[[], str]) -> T:
        """Make a call and wait for it. ``end_reason`` is asked whenever ``changed`` is notified and twice a
        second: a non-empty answer ends the wait, and the connection, with StoreGone; so does a connection
        that is closed, whose thread answers nothing any more."""
        call = self.submit(work)
        with self._changed:
            while not call.done:
                reason = "the connection was closed" if self.closed else end_reason()
                if reason:
                    self.close()
                    raise StoreGone(reason)
                self._changed.wait(0.5)
        return call.result()

    def close(self) -> None:
        """End the thread once it is free, and let the store go with it."""
        self.closed = True
        self._open = _closed
        self._calls.put(None)

    def join(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait, at most this long, until a closed connection has released its store."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def wait_for(self, store: KeyValueStore, keys: Iterable[str], own: bool) -> None:
        """Block the connection's thread until the keys are there.

        In a server of our own (``own``) by looking, so that the thread, and with it the server, can be let
        go; elsewhere until the server answers or goes.
        """
        keys = list(keys)
        if not own:
            store.wait(keys, FOR_EVER)
            return
        began = time.monotonic()
        shortest, longest = OWN_POLL_SECONDS
        while not store.check(keys):
            if self.closed:
                raise StoreGone("given up")
            time.sleep(min(longest, max(shortest, (time.monotonic() - began) / 10)))

    def _run(self) -> None:
        store: KeyValueStore | None = None

        def opened() -> KeyValueStore:
            nonlocal store
            if store is None:
                store = cast(KeyValueStore, PrefixStore(self._prefix, self._open()))
            return store

        while True:
            call = self._calls.get()
            if call is None or self.closed:
                return
            call.run(opened)
            with self._changed:
                call.done = True
                self._changed.notify_all()
