"""A connection from this agent to another one, which a new round cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from elasticjob.memory import wire

CONNECT_SECONDS = 5.0


class Link:
    """One thread owns it: it opens, uses and closes it. Any thread may ``cut`` it, also while it connects.

    Only the owner closes the socket. A descriptor that another thread closes may be that of another file by
    the time the owner's ``sendfile`` uses it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._cut = False

    def open(self, address: str, token: str) -> socket.socket:
        """Connect to ``host:port`` and say the token of the round. Raises OSError, also if it was cut."""
        host, _, port = address.rpartition(":")
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, where) in enumerate(found, 1):
            try:
                return self._opened(socket.socket(family, kind, protocol), where, token)
            except OSError:
                self.close()
                if number == len(found):
                    raise
        raise OSError(f"{host} has no address")

    def cut(self) -> None:
        """Break it for good. Calling it again is harmless."""
        with self._lock:
            self._cut = True
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The owner needs it no more."""
        with self._lock:
            sock, self._sock = self._sock, None
            if sock is not None:
                sock.close()

    def _opened(self, sock: socket.socket, where: Any, token: str) -> socket.socket:
        with self._lock:
            self._sock = sock
        self._check()
        sock.settimeout(CONNECT_SECONDS)
        sock.connect(where)
        self._check()
        wire.limit_waits(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(token.encode() + b"\n")
        return sock

    def _check(self) -> None:
        if self._cut:
            raise ConnectionAbortedError("its round has ended")
