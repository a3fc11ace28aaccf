"""The sockets of a keeper: one for its workers, one for the other members. A thread for each connection.

Workers use a Unix socket with an abstract name, which leaves no file behind, and send descriptors through it.
The names of such sockets are no secret, so each connection begins with the round's key.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from elasticjob.memory import wire
from elasticjob.memory.keeper import Keeper, RefusedError
from elasticjob.memory.pieces import PieceName, Save, parse
from elasticjob.memory.shelf import inode

logger = logging.getLogger(__name__)

LONGEST_TOKEN = 128
BACKLOG = 256
RETRY_SECONDS = 0.1
Serve = Callable[[socket.socket], None]


class Listener:
    """Accepts connections until it is closed; ``serve`` is called with each in a thread of its own."""

    def __init__(self, sock: socket.socket, serve: Serve) -> None:
        self._sock = sock
        self._serve = serve
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="elasticjob-memory", daemon=True).start()

    def cut(self) -> None:
        """Break all connections that there are."""
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, and break all connections."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                time.sleep(RETRY_SECONDS)  # there are no descriptors left, or it is closed
                continue
            with self._lock:
                self._open.add(sock)
            thread = threading.Thread(target=self._one, args=(sock,), name="elasticjob-memory", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                logger.warning("a connection for pieces is refused: %s", error)
                with self._lock:
                    self._open.discard(sock)
                sock.close()
                time.sleep(RETRY_SECONDS)

    def _one(self, sock: socket.socket) -> None:
        try:
            with sock:
                self._serve(sock)
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.debug("a connection for pieces has ended: %s", error)
        finally:
            with self._lock:
                self._open.discard(sock)


class ForWorkers:
    """The socket of an agent's own workers. ``address`` is its name, with ``@`` for the NUL that no
    environment can have."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.address = f"@elasticjob-memory-{os.getpid()}-{secrets.token_hex(8)}"
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("\0" + self.address[1:])
        sock.listen(BACKLOG)
        self._listener = Listener(sock, self._serve)

    def close(self) -> None:
        """Close it."""
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        key = wire.receive_line(sock, LONGEST_TOKEN)
        lent: set[int] = set()
        try:
            present = self._keeper.enter(key)
            wire.send(sock, {"round": present.number, "job": present.job})
            while True:
                message, descriptors = wire.receive_with_descriptors(sock)
                try:
                    self._answer(sock, key, message, descriptors, lent)
                except RefusedError as error:
                    wire.send(sock, {"refused": str(error)})
                finally:
                    wire.close_all(descriptors)
        except RefusedError as error:
            wire.send(sock, {"refused": str(error)})
        except ConnectionError:
            return  # the worker has ended
        finally:
            self._keeper.take_back(lent)

    def _answer(
        self,
        sock: socket.socket,
        key: str,
        message: wire.Message,
        descriptors: list[int],
        lent: set[int],
    ) -> None:
        """Do what a worker asks for. ``descriptors`` loses those that the keeper has taken."""
        keeper, what = self._keeper, message["what"]
        if what == "state":
            name = message["name"]
            wire.send(sock, keeper.state_of(key, None if name is None else parse(name)))
        elif what == "await":
            keeper.await_copy(key, parse(message["name"]), float(message["seconds"]))
            wire.send(sock, {})
        elif what == "lend":
            stale = [parse(one) for one in message["stale"]]
            descriptor = keeper.lend(key, _size(message), _save(message["complete"]), stale)
            lent.add(inode(descriptor))
            _hand_over(sock, {}, descriptor)
        elif what == "take":
            descriptor = descriptors.pop()
            lent.discard(inode(descriptor))
            keeper.take(key, parse(message["name"]), _size(message), descriptor)
            wire.send(sock, {})
        elif what == "inventory":
            wire.send(sock, _inventory(keeper, key))
        elif what == "lease":
            descriptor, size = keeper.lease(key, parse(message["name"]))
            _hand_over(sock, {"size": size}, descriptor)
        elif what == "fetch":
            descriptor, size = keeper.fetch(key, parse(message["name"]), str(message["address"]))
            _hand_over(sock, {"size": size}, descriptor)
        elif what == "resumed":
            keeper.resumed(key, _save(message["save"]))
            wire.send(sock, {})
        else:
            raise ValueError(f"a worker asks for {what!r:.80}, which is not known here")


class ForMembers:
    """The socket of the other members of a round. It listens at ``port``, at all addresses of the pod."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        sock = _listening()
        self.port = int(sock.getsockname()[1])
        self._listener = Listener(sock, self._serve)

    def cut(self) -> None:
        """Break the connections of members of an earlier round."""
        self._listener.cut()

    def close(self) -> None:
        """Close it."""
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        wire.limit_waits(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        token = wire.receive_line(sock, LONGEST_TOKEN)
        try:
            key = self._keeper.admit(token).key
        except RefusedError:
            return  # a stranger learns nothing
        wire.wait_long(sock)
        while True:
            message = wire.receive(sock)
            try:
                if message["what"] == "put":
                    self._put(sock, key, message)
                elif message["what"] == "get":
                    self._give(sock, key, parse(message["name"]))
                else:
                    raise ValueError(f"a member asks for {message['what']!r:.80}, which is not known here")
            except RefusedError as error:
                wire.send(sock, {"refused": str(error)})

    def _put(self, sock: socket.socket, key: str, message: wire.Message) -> None:
        name, size = parse(message["name"]), _size(message)
        kept = [parse(one) for one in message["kept"]]
        descriptor = self._keeper.make_room(key, name, size, kept, _save(message["complete"]))
        try:
            wire.limit_waits(sock)
            wire.send(sock, {})
            crc32 = wire.receive_piece(sock, descriptor, size)
            wire.wait_long(sock)
        except BaseException as error:
            self._keeper.was_cut(key, descriptor)
            logger.debug("%s did not arrive: %s", name, error)
            raise
        self._keeper.take_copy(key, name, size, crc32, descriptor)
        wire.send(sock, {})

    def _give(self, sock: socket.socket, key: str, name: PieceName) -> None:
        descriptor, size = self._keeper.lease(key, name)
        try:
            wire.send(sock, {"size": size})
            wire.send_piece(sock, descriptor, size)
        finally:
            os.close(descriptor)


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("::", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("0.0.0.0", 0), backlog=BACKLOG)


def _hand_over(sock: socket.socket, message: wire.Message, descriptor: int) -> None:
    try:
        wire.send(sock, message, [descriptor])
    finally:
        os.close(descriptor)


def _inventory(keeper: Keeper, key: str) -> wire.Message:
    found = keeper.inventory(key)
    held = [[one.name.fields(), one.size, one.crc32, one.own] for one in found.held]
    return {"agent": found.agent, "address": found.address, "held": held}


def _size(message: wire.Message) -> int:
    size = message["size"]
    if type(size) is not int or size <= 0:
        raise ValueError(f"size is {size!r:.80}, expected a whole number of bytes above 0")
    return int(size)


def _save(fields: Any) -> Save | None:
    """A save from its fields. Raises ValueError."""
    return None if fields is None else parse(["", "", *fields, 0]).save
