"""The sockets of a keeper: one for its workers, one for the other members.

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
from collections.abc import Iterator
from typing import Any

from elasticjob.memory import wire
from elasticjob.memory.door import Door
from elasticjob.memory.keeper import Keeper
from elasticjob.memory.membership import Round
from elasticjob.memory.pieces import Held, PieceName, Save, parse
from elasticjob.memory.refused import RefusedError
from elasticjob.memory.shelf import inode

logger = logging.getLogger(__name__)

BACKLOG = 256
UNDER_WAY_SECONDS = 10.0
"""How often a worker or a member hears that its answer is under way."""


class ForWorkers:
    """The socket of an agent's own workers. ``address`` is its name, with ``@`` for the NUL that no
    environment can have. ``network``: whether the agent takes pieces from others."""

    def __init__(self, keeper: Keeper, *, network: bool) -> None:
        self._keeper = keeper
        self._apart = "" if network else keeper.agent
        self.address = f"@elasticjob-memory-{os.getpid()}-{secrets.token_hex(8)}"
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("\0" + self.address[1:])
        sock.listen(BACKLOG)
        self._door = Door(sock, self._keeper.enter, self._serve, answers=True)

    def close(self) -> None:
        """Close it."""
        self._door.close()

    def _serve(self, sock: socket.socket, present: Round) -> None:
        key = present.key
        lent: set[int] = set()
        try:
            opening = self._keeper.open(key)
            greeting = {"round": present.number, "job": present.job, "opening": opening, "apart": self._apart}
            wire.send(sock, greeting)
            while True:
                message, descriptors = wire.receive_with_descriptors(sock)
                try:
                    self._answer(sock, key, message, descriptors, lent)
                except RefusedError as error:
                    wire.send(sock, {"refused": str(error)})
                finally:
                    wire.close_all(descriptors)
        except (ConnectionError, RefusedError):
            return  # the worker has ended, or its round
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
            size, complete = _size(message), _save(message["complete"])
            with _under_way(sock):
                descriptor = keeper.lend(key, int(message["rank"]), size, complete, stale)
            lent.add(inode(descriptor))
            _hand_over(sock, {}, descriptor)
        elif what == "take":
            descriptor = descriptors.pop()
            lent.discard(inode(descriptor))
            keeper.take(key, parse(message["name"]), _size(message), descriptor)
            wire.send(sock, {})
        elif what == "inventory":
            with _under_way(sock):
                found = _inventory(keeper, key)
            wire.send(sock, found)
        elif what == "lease":
            descriptor, size = keeper.lease(key, parse(message["name"]))
            _hand_over(sock, {"size": size}, descriptor)
        elif what == "fetch":
            held = Held(parse(message["name"]), _size(message), int(message["crc32"]), own=False)
            with _under_way(sock):
                descriptor = keeper.fetch(key, held, str(message["address"]), float(message["seconds"]))
            _hand_over(sock, {}, descriptor)
        elif what == "open":
            wire.send(sock, {"opening": keeper.open(key)})
        elif what == "resumed":
            folder, save = str(message["folder"]), _save(message["save"])
            keeper.resumed(key, folder, save, int(message["opening"]))
            wire.send(sock, {})
        else:
            raise ValueError(f"a worker asks for {what!r:.80}, which is not known here")


class ForMembers:
    """The socket of the other members of a round. It listens at ``port``, at all addresses of the pod."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        sock = _listening()
        self.port = int(sock.getsockname()[1])
        self.door = Door(sock, self._keeper.admit, self._serve, answers=False)  # a stranger learns nothing

    def cut(self) -> None:
        """Break the connections of members of an earlier round."""
        self.door.cut()

    def close(self) -> None:
        """Close it."""
        self.door.close()

    def _serve(self, sock: socket.socket, present: Round) -> None:
        key = present.key
        wire.limit_waits(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        with _under_way(sock):
            descriptor = self._keeper.make_room(key, name, size, kept, _save(message["complete"]))
        try:
            wire.limit_waits(sock)
            wire.send(sock, {})
            crc32 = wire.receive_piece(sock, descriptor, size)
            wire.wait_long(sock)
        except BaseException as error:
            self._keeper.was_cut(key, name, descriptor)
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


@contextlib.contextmanager
def _under_way(sock: socket.socket) -> Iterator[None]:
    """Let the other side wait for as long as this takes: to make a large buffer, or to get a large piece and
    others before it."""
    ended = threading.Event()

    def say() -> None:
        with contextlib.suppress(OSError):  # the other side has gone
            while not ended.wait(UNDER_WAY_SECONDS):
                wire.send(sock, wire.UNDER_WAY)

    saying = threading.Thread(target=say, name="elasticjob-memory", daemon=True)
    saying.start()
    try:
        yield
    finally:
        ended.set()
        saying.join()


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
