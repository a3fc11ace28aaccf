"""Admits connections to an agent: each must begin with a line that has the right key or token.

The port is open to the whole network. So one thread serves all callers that have not said their line yet,
and there are few of them at a time. A thread for one alone has only a caller whose line was right.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elasticjob.memory import wire
from elasticjob.memory.membership import Round
from elasticjob.memory.refused import RefusedError

logger = logging.getLogger(__name__)

LONGEST_LINE = 128
MOST_CALLERS = 64
"""How many connections may not have been admitted yet. One more, and the oldest one is closed: a member says
its line at once, so it is not the one that is closed."""
MOST_SERVED = 512
"""How many are served at the same time; more wait until one has ended."""
GREETING_SECONDS = 5.0
"""How long a caller has for its whole line."""
WAIT_SECONDS = 30.0
"""How long one waits after that: this agent may not have met the other members yet."""
RETRY_SECONDS = 0.05
LISTENER, WAKE = "listener", "wake"

Admit = Callable[[bytes], "Round | None"]
"""The round of a caller that has said this line; None if that is not known yet. Raises RefusedError."""
Serve = Callable[[socket.socket, Round], None]


@dataclass(eq=False)
class _Caller:
    sock: socket.socket
    ends: float
    line: bytes = b""
    said: bool = False


class Door:
    """Accepts connections until it is closed, and calls ``serve`` in a thread with each that is admitted.
    With ``answers`` one that is not is sent the reason."""

    def __init__(self, sock: socket.socket, admit: Admit, serve: Serve, *, answers: bool) -> None:
        self._sock = sock
        self._admit = admit
        self._serve = serve
        self._answers = answers
        self._callers: list[_Caller] = []
        self._served: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._woken, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, LISTENER)
        self._selector.register(self._woken, selectors.EVENT_READ, WAKE)
        self._thread = threading.Thread(target=self._run, name="elasticjob-memory", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Break all connections that are served."""
        with self._lock:
            for sock in self._served:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, and break all connections."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(1)
        self.cut()

    def count(self) -> tuple[int, int]:
        """How many callers there are, and how many are served."""
        return len(self._callers), len(self._served)

    # -- the thread of the door: the only one that touches callers and closes the listener -----------------

    def _run(self) -> None:
        while not self._closed:
            events = self._selector.select(self._pause())
            for key, _ in events:
                if isinstance(key.data, _Caller):
                    self._read(key.data)
            if any(key.data == LISTENER for key, _ in events):
                self._accept()
            self._let_in()
        for caller in list(self._callers):
            self._dismiss(caller)
        for sock in (self._sock, self._woken, self._wake):
            sock.close()
        self._selector.close()

    def _pause(self) -> float | None:
        if any(caller.said for caller in self._callers):
            return RETRY_SECONDS
        ends = min((caller.ends for caller in self._callers), default=None)
        return None if ends is None else max(ends - time.monotonic(), 0)

    def _accept(self) -> None:
        """Accept one. What it has sent already is read at once."""
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            logger.debug("no connection for pieces is accepted: %s", error)
            time.sleep(RETRY_SECONDS)  # there are no descriptors left
            return
        if len(self._callers) >= MOST_CALLERS:
            self._dismiss(min(self._callers, key=lambda caller: (caller.said, caller.ends)))
        sock.setblocking(False)
        caller = _Caller(sock, time.monotonic() + GREETING_SECONDS)
        self._callers.append(caller)
        self._selector.register(sock, selectors.EVENT_READ, caller)
        self._read(caller)

    def _read(self, caller: _Caller) -> None:
        """Read up to the end of its line, and no further: what comes next is for ``serve``."""
        try:
            for byte in self._bytes(caller):
                if byte == b"\n":
                    caller.said, caller.ends = True, time.monotonic() + WAIT_SECONDS
                    self._selector.unregister(caller.sock)
                    return
                caller.line += byte
        except BlockingIOError:
            return
        except OSError as error:
            logger.debug("a connection for pieces has ended: %s", error)
        self._dismiss(caller)

    @staticmethod
    def _bytes(caller: _Caller) -> Iterator[bytes]:
        while len(caller.line) <= LONGEST_LINE:
            byte = caller.sock.recv(1)
            if not byte:
                return
            yield byte

    def _let_in(self) -> None:
        """Admit those that have said their line, and close those whose time is over."""
        for caller in list(self._callers):
            try:
                admitted = self._admit(caller.line) if caller.said else None
            except RefusedError as error:
                self._refuse(caller, str(error))
                continue
            if admitted is not None and len(self._served) < MOST_SERVED:
                self._begin(caller, admitted)
            elif time.monotonic() > caller.ends:
                self._dismiss(caller)

    def _refuse(self, caller: _Caller, why: str) -> None:
        if self._answers:
            with contextlib.suppress(OSError):
                wire.send(caller.sock, {"refused": why})
        self._dismiss(caller)

    def _dismiss(self, caller: _Caller) -> None:
        self._callers.remove(caller)
        if not caller.said:
            self._selector.unregister(caller.sock)
        caller.sock.close()

    def _begin(self, caller: _Caller, admitted: Round) -> None:
        self._callers.remove(caller)
        with self._lock:
            self._served.add(caller.sock)
        thread = threading.Thread(
            target=self._one, args=(caller.sock, admitted), name="elasticjob-memory", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("a connection for pieces is refused: %s", error)
            self._ended(caller.sock)

    # -- the thread of one connection ----------------------------------------------------------------------

    def _one(self, sock: socket.socket, admitted: Round) -> None:
        try:
            sock.setblocking(True)
            self._serve(sock, admitted)
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.debug("a connection for pieces has ended: %s", error)
        finally:
            self._ended(sock)

    def _ended(self, sock: socket.socket) -> None:
        with self._lock:
            self._served.discard(sock)
            sock.close()
