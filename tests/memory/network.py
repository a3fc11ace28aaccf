"""Connections between the agents of a history: the real protocol, and cut where a history says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from elasticjob.memory import wire
from elasticjob.memory.keeper import Keeper
from elasticjob.memory.link import Link
from elasticjob.memory.refused import RefusedError
from elasticjob.memory.serving import ForMembers


class Network:
    """The agents that can be reached, by address."""

    def __init__(self) -> None:
        self.keepers: dict[str, Keeper] = {}
        self.cut_at: float | None = None
        """Where the next piece that is sent is cut: a part of its length."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[tuple[socket.socket, threading.Thread]] = []

    @contextmanager
    def there(self) -> Iterator[None]:
        """In the place of the real one."""
        network, send_piece = self, wire.send_piece

        def opened(link: Link, address: str, token: str) -> socket.socket:
            link._sock = network._connect(address, token)
            return link._sock

        def sent(sock: socket.socket, descriptor: int, size: int) -> int:
            cut_at, network.cut_at = network.cut_at, None
            if cut_at is None:
                return send_piece(sock, descriptor, size)
            with suppress(OSError):
                send_piece(sock, descriptor, max(1, int(size * cut_at)))
            raise ConnectionError("it was cut")

        with mock.patch.object(Link, "open", opened), mock.patch.object(wire, "send_piece", sent):
            yield

    def settle(self) -> None:
        """Wait until the agents have noticed which connections have ended."""
        for sock, thread in list(self._open):
            if sock.fileno() == -1:
                thread.join()
                self._open.remove((sock, thread))

    def close(self) -> None:
        """End all that is left."""
        for sock, _ in self._open:
            sock.close()
        self.settle()
        self._listener.close()

    def _connect(self, address: str, token: str) -> socket.socket:
        keeper = self.keepers.get(address)
        if keeper is None:
            raise ConnectionRefusedError(f"no agent is at {address}")
        try:
            admitted = keeper.admit(token.encode())
        except RefusedError as error:
            raise ConnectionResetError(str(error)) from error
        near = socket.create_connection(self._listener.getsockname())
        far, _ = self._listener.accept()
        thread = threading.Thread(target=self._serve, args=(keeper, far, admitted), daemon=True)
        thread.start()
        self._open.append((near, thread))
        return near

    @staticmethod
    def _serve(keeper: Keeper, sock: socket.socket, admitted: Any) -> None:
        members = ForMembers.__new__(ForMembers)
        members._keeper = keeper
        with sock, suppress(OSError, ValueError, LookupError, TypeError):
            members._serve(sock, admitted)
