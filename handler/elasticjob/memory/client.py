"""A worker's connection to its agent's keeper."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from elasticjob.memory import wire
from elasticjob.memory.pieces import Held, Inventory, PieceName, Save, parse

ANSWER_SECONDS = 120
"""An agent that says nothing for this long is taken for lost. It says again and again that a long answer is
under way."""


class AgentError(Exception):
    """The agent does what was asked for no more; the text says why."""


@dataclass(frozen=True)
class State:
    """What an agent says to a worker that is about to save."""

    off: str = ""
    """Why it takes no more pieces; "" if it does."""
    ended: bool = True
    """Whether the copy of the piece has ended."""
    why: str = ""
    """Why the copy failed; "" if it has not."""
    copied: bool = False
    """Whether another agent has the piece."""
    alone: str = ""
    """Why no other agent has it, though one should."""
    all_stay: bool = False
    """Whether the round drains for a change after which all of its members go on."""


class Agent:
    """The agent of this worker. ``where`` is what ``ELASTICJOB_MEMORY_AGENT`` says.

    All methods raise AgentError if the agent refuses, has gone or does not answer; nothing else. After the
    last two the next request makes a new connection.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._lost = False
        self._sock, answer = self._connected()
        try:
            self.round, self.job = int(answer["round"]), str(answer["job"])
            self.opening = int(answer["opening"])
            self.apart = str(answer["apart"])
            """Different for each agent that takes no pieces from others; "" if this one does."""
        except (ValueError, KeyError) as error:
            self._sock.close()
            raise AgentError(f"torchrun's greeting cannot be read: {error}") from error

    def close(self) -> None:
        """End the connection for good."""
        self._lost = False
        self._sock.close()

    def _connected(self) -> tuple[socket.socket, wire.Message]:
        """A connection, and what the agent says first."""
        address, _, key = self._where.rpartition(":")
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect("\0" + address.removeprefix("@"))
            wire.limit_waits(sock, ANSWER_SECONDS)
            sock.sendall(key.encode() + b"\n")
            return sock, _granted(wire.receive(sock))
        except AgentError:
            sock.close()
            raise
        except (OSError, ValueError) as error:
            sock.close()
            raise AgentError(f"torchrun cannot be reached: {wire.in_words(error, ANSWER_SECONDS)}") from error

    def state_of(self, name: PieceName | None) -> State:
        """What the agent says of itself and of this piece."""
        answer, _ = self._ask("state", name=None if name is None else name.fields())
        known = {field.name: answer[field.name] for field in fields(State) if field.name in answer}
        return State(**known)

    def await_copy(self, name: PieceName, seconds: float) -> None:
        """Wait until the copy of this piece has ended."""
        self._ask("await", name=name.fields(), seconds=min(seconds, ANSWER_SECONDS / 2))

    def lend(self, rank: int, size: int, complete: Save | None, stale: Iterable[PieceName]) -> int:
        """A descriptor of a buffer for a piece of this rank, of ``size`` bytes."""
        names = [name.fields() for name in stale]
        return self._one(self._ask("lend", rank=rank, size=size, complete=complete, stale=names)[1])

    def take(self, name: PieceName, size: int, descriptor: int) -> None:
        """The piece is written: from now on it outlives this process."""
        self._ask("take", [descriptor], name=name.fields(), size=size)

    def inventory(self) -> Inventory:
        """What the agent holds."""
        answer, _ = self._ask("inventory")
        try:
            held = tuple(
                Held(parse(name), int(size), int(crc32), bool(own))
                for name, size, crc32, own in answer["held"]
            )
            return Inventory(str(answer["agent"]), str(answer["address"]), held)
        except (ValueError, KeyError, TypeError) as error:
            raise AgentError(f"torchrun's list of pieces cannot be read: {error}") from error

    def lease(self, name: PieceName) -> int:
        """A descriptor of a piece that the agent holds."""
        return self._one(self._ask("lease", name=name.fields())[1])

    def fetch(self, held: Held, address: str, seconds: float) -> int:
        """A descriptor of a piece that the agent gets from another one, which has said that it holds it. It
        is refused if it takes longer than ``seconds``."""
        what: wire.Message = {"name": held.name.fields(), "size": held.size, "crc32": held.crc32}
        return self._one(self._ask("fetch", address=address, seconds=seconds, **what)[1])

    def open(self) -> int:
        """The number of a new opening, as in the greeting: greater than all before in this round."""
        answer, _ = self._ask("open")
        return int(answer["opening"])

    def resumed(self, folder: str, save: Save | None, opening: int) -> None:
        """All ranks have resumed what is saved for this folder, from this save in memory or (None) from
        elsewhere, and save with this ``opening``."""
        self._ask("resumed", folder=folder, save=save, opening=opening)

    def _ask(
        self, what: str, descriptors: Sequence[int] = (), **fields: Any
    ) -> tuple[wire.Message, list[int]]:
        if self._lost:
            self._sock, _ = self._connected()
            self._lost = False
        try:
            wire.send(self._sock, {"what": what, **fields}, descriptors)
            answer, received = wire.receive_with_descriptors(self._sock)
            while answer == wire.UNDER_WAY:
                answer, received = wire.receive_with_descriptors(self._sock)
        except (OSError, ValueError) as error:
            self._lost = self._sock.fileno() >= 0
            self._sock.close()  # an answer that comes later must not be taken for that of the next request
            raise AgentError(f"torchrun does not answer: {wire.in_words(error, ANSWER_SECONDS)}") from error
        try:
            return _granted(answer), received
        except AgentError:
            wire.close_all(received)
            raise

    @staticmethod
    def _one(descriptors: list[int]) -> int:
        if len(descriptors) == 1:
            return descriptors[0]
        wire.close_all(descriptors)
        raise AgentError(f"torchrun has sent {len(descriptors)} descriptors, expected one")


def where(address: str, key: str) -> str:
    """What ``ELASTICJOB_MEMORY_AGENT`` says."""
    return f"{address}:{key}"


def _granted(answer: wire.Message) -> wire.Message:
    if "refused" in answer:
        raise AgentError(str(answer["refused"]))
    return answer
