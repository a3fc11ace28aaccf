"""The thread that sends copies of an agent's pieces to its partner, one after the other.

It also takes their checksums, so that neither training nor the receiving agent waits for them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

from elasticjob.memory import wire
from elasticjob.memory.keeper import Copy, Keeper
from elasticjob.memory.link import Link
from elasticjob.memory.membership import Round
from elasticjob.memory.shelf import Ended

logger = logging.getLogger(__name__)

FAILURES, REST_SECONDS = 3, 60.0
"""After how many failures in turn a partner is left alone, and for how long."""


class Copies(threading.Thread):
    """Runs until the keeper is closed."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(name="elasticjob-memory-copies", daemon=True)
        self._keeper = keeper
        self._link = Link()
        self._sock: socket.socket | None = None
        """That of the link, if it is open."""
        self._sock_key = ""
        self._key = ""
        self._failures = 0
        """How many copies have failed in turn, in the round of this key."""
        self._why = ""
        """Why the last of them has."""
        self._resting = 0.0
        """Until when no copy is sent, by the monotonic clock."""

    def run(self) -> None:
        while (copy := self._keeper.next_copy()) is not None:
            self.work(copy)
        self._close()

    def work(self, copy: Copy) -> None:
        """Copy one piece, and tell the keeper how that has ended."""
        try:
            ended = self._copy(copy)
        except Exception as error:  # noqa: BLE001  # the piece stays; the next save is tried again
            ended = Ended(why=f"{copy.piece.name} was not copied: {wire.in_words(error)}")
        finally:
            os.close(copy.descriptor)
        self._keeper.copied(copy.piece, ended)

    def _copy(self, copy: Copy) -> Ended:
        """Send it if there is a partner that can be reached. A partner that fails again and again is left
        alone for a while: the save is complete without this copy then, and all say that it has none."""
        if self._key != copy.round.key:
            self._key, self._failures, self._resting = copy.round.key, 0, 0.0
        partner, alone = _partner(copy.round)
        if partner and time.monotonic() >= self._resting:
            try:
                crc32 = self._send(copy)
            except Exception as error:
                self._close()
                if not self._failed(copy, error):
                    raise
            else:
                self._failures = 0
                return Ended(crc32, copied=True)
        if partner:
            alone = f"{self._failures} copies in turn could not be sent to {partner}: {self._why}"
        return Ended(wire.checksum(copy.descriptor, copy.piece.size), alone=alone)

    def _failed(self, copy: Copy, error: Exception) -> bool:
        """Whether the partner is left alone now. The first failure of a round is said, and this: a partner
        that is lost ends the round soon."""
        self._failures += 1
        self._why = wire.in_words(error)
        rests = self._failures >= FAILURES
        self._resting = time.monotonic() + REST_SECONDS if rests else 0.0
        logger.log(
            logging.WARNING if self._failures in (1, FAILURES) else logging.DEBUG,
            "memory checkpoints: %s was not copied: %s%s",
            copy.piece.name,
            self._why,
            f"; there are no copies now, and in {REST_SECONDS:g} s it is tried again" if rests else "",
        )
        return rests

    def cut(self) -> None:
        """The round has ended, for the keeper too. Break its connection: what is sent to a member that does
        not answer must not hold up the next round. Any thread may call it."""
        self._link.cut()

    def _close(self) -> None:
        self._sock, self._sock_key = None, ""
        self._link.close()

    def _connected(self, present: Round, partner: str, token: str) -> socket.socket:
        """The connection of this round. ``cut`` comes after the keeper has begun a new one: so it finds the
        link that is made here, or the keeper says here that the round is over."""
        if self._sock is None or self._sock_key != present.key:
            self._close()
            self._link = Link()
            self._keeper.check_present(present.key)
            self._sock, self._sock_key = self._link.open(partner, token), present.key
        return self._sock

    def _send(self, copy: Copy) -> int:
        """Send it to the partner; returns its checksum. Raises OSError, and what the wire raises."""
        piece, members = copy.piece, copy.round.members
        assert members is not None
        sock = self._connected(copy.round, members.partner, members.token)
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
        answer = wire.receive_answer(sock, piece.size)
        if "refused" in answer:
            raise ConnectionError(f"{members.partner} says: {answer['refused']}")
        crc32 = wire.send_piece(sock, copy.descriptor, piece.size)
        answer = wire.receive(sock)
        if "refused" in answer:
            raise ConnectionError(f"{members.partner} says: {answer['refused']}")
        return crc32


def _partner(present: Round) -> tuple[str, str]:
    """The address of the partner; "" if there is no one to send to, and then why, if there should be."""
    if present.members is None:
        return "", "the members of the round have not met"
    return present.members.partner, present.members.alone
