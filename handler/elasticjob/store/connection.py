"""Calls of a store that the caller can abandon (``StoreConnection.submit`` has the contract)."""

from __future__ import annotations

import math
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
"""How long to wait for the thread of a closed connection."""
FOR_EVER = timedelta(days=30)
OWN_POLL_SECONDS = (0.001, 0.02)
"""A check of a server of our own costs 15 us; the longer the wait, the longer the pauses."""


def _closed() -> TCPStore:
    raise StoreGone("given up")


class KeyValueStore(Protocol):
    """The part of torch's stores that is used here; torch's own type stubs leave half of it out."""

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
    """One call in a connection's thread. ``done`` is set while the connection's ``changed`` is held."""

    def __init__(self, work: Callable[[KeyValueStore], T]) -> None:
        self.work = work
        self.done = False
        self._value: T | None = None
        self._error: Exception | None = None

    def run(self, store: Callable[[], KeyValueStore]) -> None:
        """Do the work. Errors are kept for ``result``, without their frames, which hold the store."""
        try:
            self._value = self.work(store())
        except (StoreGone, CannotConnect) as error:
            self._error = error.with_traceback(None)
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            self._error = StoreGone(str(error))

    def result(self) -> T:
        """What the call returned. Raises CannotConnect, or StoreGone for any other error."""
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
        """Begin a call in the connection's thread; ``changed`` is notified when it is done.

        ``work`` may block inside C++ for ever, if the server is frozen: even a wait with a time limit still
        expects the answer to its cancellation. A main thread that blocks there runs no signal handler. So
        the caller waits for the call in Python, and may abandon it at any moment, by ``close``.

        An abandoned call may still change the store. Its thread is left behind with the connection's file
        descriptor, and ends when the call returns: at the latest when the server ends, or at ``disconnect``.
        The first call starts the thread.
        """
        call = StoreCall(work)
        self._calls.put(call)
        with self._starting:
            if self._thread is None and not self.closed:
                self._thread = threading.Thread(target=self._run, name="elasticjob-store", daemon=True)
                self._thread.start()
        return call

    def call(self, work: Callable[[KeyValueStore], T], end_reason: Callable[[], str]) -> T:
        """Make a call and wait for it. ``end_reason`` is called whenever ``changed`` is notified and twice a
        second: a reason ends the wait, and the connection, with StoreGone. So does ``close``."""
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

    def wait_for(
        self, store: KeyValueStore, keys: Iterable[str], own: bool, seconds: float = math.inf
    ) -> None:
        """Block the connection's thread until the keys are there.

        A server of our own (``own``) is polled, so that ``close`` ends the wait and lets the server go, and
        that it ends with TimeoutError after ``seconds``; any other wait ends when the server answers or goes.
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
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"not all of {len(keys)} keys were there after {seconds:g} s")
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
