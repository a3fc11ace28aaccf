"""TCPStores of a round: the servers that an agent keeps, and calls that the caller can abandon.

Any call of a TCPStore client may block for ever inside C++ when its server is frozen (a timed-out wait
still expects the answer to its cancellation, and prints to stderr), and a main thread that blocks there
runs no signal handler. So every call runs in a thread of its own connection, and the caller waits in
Python: for the answer, or until it has a reason to go on without it. A thread that is stuck is left
behind with its connection; it ends when the server does.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import queue
import selectors
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from torch.distributed import DistNetworkError, PrefixStore, TCPStore

from elasticjob.contract.records import parse_endpoint
from elasticjob.core.heartbeats import ProbeResult

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 1.0
"""How long to wait for a thread that was told to end."""
FOR_EVER = timedelta(days=30)
OWN_POLL_SECONDS = (0.001, 0.02)
"""A look into a server of our own costs 15 us; the longer it waits the rarer it looks."""


class StoreGone(Exception):
    """The leader's store can't be reached, or waiting for it is of no more use."""


class Unreachable(StoreGone):
    """No connection could be made: nothing has been said to the store yet."""


class CannotConnect(Exception):
    """This process can make no connection, whoever serves: nothing that a peer could be judged by.

    ``passing``: for want of descriptors or memory, which may be over in a moment.
    """

    def __init__(self, text: str, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


LIBUV_ENV = "USE_LIBUV"


@functools.cache
def has_libuv() -> bool:
    """Whether this torch was built with libuv. Asked once: a server answers it, which is closed at once."""
    try:
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as error:
        return "libuv" not in str(error).lower()  # another error says nothing of it
    return True


def use_libuv() -> bool:
    """Whether TCPStores shall use libuv. torch's own do unless ``USE_LIBUV`` says otherwise, and fail where
    it is not there (Debian's torch)."""
    return os.environ.get(LIBUV_ENV, "1") == "1" and has_libuv()


def serve() -> TCPStore:
    """Start a TCPStore server of our own on a free port; ``.port`` tells which."""
    return TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
        use_libuv=use_libuv(),
    )


class Server:
    """A TCPStore server that ends when it is closed, even if the object is still referenced."""

    def __init__(self, store: TCPStore) -> None:
        self._store: TCPStore | None = store
        self.port: int = store.port

    @property
    def store(self) -> TCPStore:
        """The server's own client. Raises StoreGone when it is closed."""
        if self._store is None:
            raise StoreGone("given up")
        return self._store

    def close(self) -> None:
        """Let it go: its ports and threads end at once, or with the call that a connection is still in."""
        self._store = None


class HeldPort:
    """A port of this host that is kept for a store which a worker is to serve (torch 2.4 and 2.5).

    Bound and never listened on: the kernel does not give it out as a free port and accepts no connection, and
    only servers that set SO_REUSEADDR can bind it, as every TCPStore server does. So the seconds in which the
    worker starts are covered; elsewhere than on Linux, where the worker would be refused, too, the port is
    let go at once. A server with this very number that sets SO_REUSEADDR could still take it: global rank 0's
    worker then fails with EADDRINUSE, which ends the round like any worker's failure, and the next round has
    another port.
    """

    def __init__(self) -> None:
        try:
            self._socket = _bound(socket.AF_INET6, "::")
        except OSError:  # no IPv6 here
            self._socket = _bound(socket.AF_INET, "0.0.0.0")
        self.port: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self._socket.close()

    def close(self) -> None:
        """Hold it no longer."""
        self._socket.close()


def _bound(family: socket.AddressFamily, host: str) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind((host, 0))
    except OSError:
        one.close()
        raise
    return one


def connect(endpoint: str) -> TCPStore:
    """A client of the server at an endpoint. Raises Unreachable, or CannotConnect if the fault is local.

    A plain connection is tried first: TCPStore itself would retry for minutes, and print to stderr. torch
    calls what comes from the network, time limits too, a DistNetworkError, from 2.4 on.
    """
    host, port = parse_endpoint(endpoint)
    found = probe({0: endpoint}, CONNECT_SECONDS).get(0)
    if found is None:
        raise CannotConnect("this process cannot open more connections", passing=True)
    if found is not ProbeResult.ACCEPTED:
        raise Unreachable(f"{endpoint}: {_unresolved(host) or found.value}")
    try:
        return TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=60),
            use_libuv=use_libuv(),
        )
    except (DistNetworkError, OSError) as error:
        raise Unreachable(f"{endpoint}: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no peer's fault
        raise CannotConnect(f"{type(error).__name__}: {error}") from None


def _unresolved(host: str) -> str:
    """Why the name cannot be resolved, "" if it can."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the name {host} cannot be resolved ({error.strerror})"
    return ""


LOCAL_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
"""Of this process or its machine: nothing that a peer could be judged by."""


def probe(endpoints: Mapping[int, str], seconds: float) -> dict[int, ProbeResult]:
    """What connections to these ports meet, all tried at once, within this many seconds. Never raises: a port
    that could not be tried, for want of descriptors, say, is not in the answer."""
    result: dict[int, ProbeResult] = dict.fromkeys(endpoints, ProbeResult.SILENT)
    try:
        _probe(endpoints, time.monotonic() + seconds, result)
    except OSError as error:
        logger.debug("cannot probe ports: %s", error)
        return {}
    return result


def _probe(endpoints: Mapping[int, str], deadline: float, result: dict[int, ProbeResult]) -> None:
    with selectors.DefaultSelector() as selector:
        for rank, endpoint in endpoints.items():
            host, port = parse_endpoint(endpoint)
            try:
                family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
                    0
                ]
            except OSError as error:
                if not isinstance(error, socket.gaierror) or error.errno == socket.EAI_MEMORY:
                    del result[rank]
                continue
            try:
                one = socket.socket(family, kind, protocol)
            except OSError:
                del result[rank]
                continue
            one.setblocking(False)
            code = one.connect_ex(address)
            if code in LOCAL_ERRORS:
                del result[rank]
                one.close()
            elif code in (0, errno.EINPROGRESS):
                selector.register(one, selectors.EVENT_WRITE, rank)
            else:
                result[rank] = _probe_result(code)
                one.close()
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                result[key.data] = _probe_result(key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                selector.unregister(key.fileobj)
                key.fileobj.close()
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def disconnect(endpoint: str) -> None:
    """Break this process's connections to a server: a thread in a call of it in C++ gets an error.

    Otherwise a wait without an answer holds its thread and descriptors until the server goes. Only on Linux;
    elsewhere they stay until then, as does a thread that still waits for the hello of a frozen server.
    """
    host, port = parse_endpoint(endpoint)
    try:
        hosts = {address[0] for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):
            # A copy: what is looked at is what is shut down, whatever becomes of the number meanwhile.
            copy = os.dup(number)
            try:
                _shut_down(copy, hosts, port)
            finally:
                os.close(copy)


def _shut_down(file: int, hosts: set[str | int], port: int) -> None:
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        return
    one = socket.socket(fileno=file)
    try:
        peer = one.getpeername()
        if isinstance(peer, tuple) and peer[1] == port and peer[0].removeprefix("::ffff:") in hosts:
            one.shutdown(socket.SHUT_RDWR)
    finally:
        one.detach()


def _closed() -> TCPStore:
    raise StoreGone("given up")


def _probe_result(code: int) -> ProbeResult:
    if code == 0:
        return ProbeResult.ACCEPTED
    return ProbeResult.REFUSED if code == errno.ECONNREFUSED else ProbeResult.SILENT


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
