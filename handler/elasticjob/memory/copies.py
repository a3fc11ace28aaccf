"""The thread that sends copies of an agent's pieces to its partner, one after the other.

It also takes their checksums, so that neither training nor the receiving agent waits for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading

from elasticjob.memory import wire
from elasticjob.memory.keeper import Copy, Keeper

logger = logging.getLogger(__name__)


class Copies(threading.Thread):
    """Runs until the keeper is closed."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(name="elasticjob-memory-copies", daemon=True)
        self._keeper = keeper
        self._sock: socket.socket | None = None
        self._sock_key = ""
        self._said = ""

    def run(self) -> None:
        while (copy := self._keeper.next_copy()) is not None:
            crc32, why = None, ""
            try:
                crc32 = self._send(copy)
            except Exception as error:  # noqa: BLE001  # the piece stays; the next save is tried again
                self.cut()
                why = f"{copy.piece.name} was not copied: {error}"
                self._say(copy, why)
            finally:
                os.close(copy.descriptor)
            self._keeper.copied(copy.piece, crc32, why)
        self.cut()

    def cut(self) -> None:
        """Break the connection: what is sent to a member that does not answer must not hold up the next
        round. Any thread may call it."""
        sock, self._sock, self._sock_key = self._sock, None, ""
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _send(self, copy: Copy) -> int:
        """Send it, if there is a partner; returns its checksum. Raises OSError, and what the wire raises."""
        piece, members = copy.piece, copy.round.members
        assert members is not None
        if not members.partner:
            return wire.checksum(copy.descriptor, piece.size)
        if self._sock is None or self._sock_key != copy.round.key:
            self.cut()
            self._sock, self._sock_key = wire.connect(members.partner, members.token), copy.round.key
        sock = self._sock
        wire.send(
            sock,
            {
                "what": "put",
                "name": piece.name.fields(),
                "size": piece.size,
                "kept": [name.fields() for name in copy.kept],
                "complete": copy.complete,
            },
        )
        answer = wire.receive(sock)
        if "refused" in answer:
            raise ConnectionError(f"{members.partner} says: {answer['refused']}")
        crc32 = wire.send_piece(sock, copy.descriptor, piece.size)
        answer = wire.receive(sock)
        if "refused" in answer:
            raise ConnectionError(f"{members.partner} says: {answer['refused']}")
        return crc32

    def _say(self, copy: Copy, why: str) -> None:
        """Once in a round: a partner that is lost ends the round soon."""
        level = logging.DEBUG if self._said == copy.round.key else logging.WARNING
        self._said = copy.round.key
        logger.log(level, "memory checkpoints: %s", why)
