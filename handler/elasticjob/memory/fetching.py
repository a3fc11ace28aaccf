"""The pieces that an agent has got from other members, for all of its workers until they have resumed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable

from elasticjob.memory import decide, wire
from elasticjob.memory.link import Link
from elasticjob.memory.pieces import Held, PieceName
from elasticjob.memory.refused import RefusedError
from elasticjob.memory.shelf import make_buffer, rounded

RETRY_PAUSES = (0.5, 2.0)
"""Seconds before a connection that has failed is tried again."""


class Fetched:
    """One piece is got at a time. What is under way when the pieces are forgotten is cut, and an answer that
    comes later is not kept: it could be that of a round that has ended. A member that has failed is asked no
    more until then: each attempt may take minutes, while all ranks wait. Pieces of one save are kept: when
    one of another save is asked for, all ranks have given up the first.

    ``gate`` and ``make_way`` are those of the ``Keeper``.
    """

    def __init__(self, gate: Callable[[int], str], make_way: Callable[[int], None]) -> None:
        self._gate = gate
        self._make_way = make_way
        self._lock = threading.Lock()
        self._one = threading.Lock()
        self._pieces: dict[tuple[Held, str], int] = {}
        self._failed: dict[str, str] = {}
        """Why, by address."""
        self._link: Link | None = None
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """What ``get`` is called with: how often the pieces were forgotten."""
        return self._epoch

    def get(self, epoch: int, held: Held, address: str, token: str, seconds: float) -> int:
        """A descriptor, which is the caller's, of a piece that the member at ``address`` has said it holds.
        Raises RefusedError, also if it takes longer than ``seconds``."""
        ends = time.monotonic() + seconds
        if not self._one.acquire(timeout=max(seconds, 0)):
            raise RefusedError(f"{held.name} was not asked for: other pieces took all of the time")
        try:
            with self._lock:
                self._check(epoch, held.name)
                self._free([one for one in self._pieces if one[0].name.save != held.name.save])
                if (held, address) in self._pieces:
                    return os.dup(self._pieces[held, address])
                if address in self._failed:
                    raise RefusedError(
                        f"{held.name}: {address} is asked no more, it has failed: {self._failed[address]}"
                    )
            return self._keep(epoch, held, address, self._received(epoch, held, address, token, ends))
        finally:
            self._one.release()

    def forget(self) -> None:
        """Free them, and cut what is under way."""
        with self._lock:
            self._epoch += 1
            if self._link is not None:
                self._link.cut()
            self._failed.clear()
            self._free(list(self._pieces))

    def _free(self, pieces: Iterable[tuple[Held, str]]) -> None:
        for one in pieces:
            os.close(self._pieces.pop(one))

    def _check(self, epoch: int, name: PieceName) -> None:
        if epoch != self._epoch:
            raise RefusedError(f"{name} was let go of before it was read")

    def _keep(self, epoch: int, held: Held, address: str, descriptor: int) -> int:
        with self._lock:
            try:
                self._check(epoch, held.name)
                kept = os.dup(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._pieces[held, address] = kept
            return descriptor

    def _received(self, epoch: int, held: Held, address: str, token: str, ends: float) -> int:
        """Get it, and note if the member has failed."""
        began = time.monotonic()
        try:
            return self._tried(epoch, held, address, token, ends)
        except (OSError, ValueError, KeyError) as error:
            why, now = wire.in_words(error), time.monotonic()
            had_time = now < ends or now - began >= wire.STUCK_SECONDS
            with self._lock:
                if isinstance(error, OSError) and had_time and epoch == self._epoch:
                    self._failed[address] = why
            raise RefusedError(f"{held.name} did not come from {address}: {why}") from error

    def _tried(self, epoch: int, held: Held, address: str, token: str, ends: float) -> int:
        """Get it. A connection that breaks is tried again: the piece may be nowhere else."""
        for pause in RETRY_PAUSES:
            try:
                return self._received_once(epoch, held, address, token, ends)
            except OSError:
                if time.monotonic() + pause >= ends:
                    raise
                time.sleep(pause)
        return self._received_once(epoch, held, address, token, ends)

    def _received_once(self, epoch: int, held: Held, address: str, token: str, ends: float) -> int:
        """Get it, and cut the connection when the time is over."""
        with self._lock:
            self._check(epoch, held.name)
            link = self._link = Link()
        cutting = threading.Timer(max(ends - time.monotonic(), 0), link.cut)
        cutting.daemon = True
        cutting.start()
        try:
            return self._receive(link, held, address, token)
        except OSError as error:
            if time.monotonic() >= ends:
                raise TimeoutError("it was not there in time") from error
            raise
        finally:
            cutting.cancel()
            link.close()

    def _receive(self, link: Link, held: Held, address: str, token: str) -> int:
        """Get it. What the member says of it now must be what it has said to all ranks, before any memory is
        used."""
        sock = link.open(address, token)
        wire.send(sock, {"what": "get", "name": held.name.fields()})
        answer = wire.receive(sock)
        if "refused" in answer:
            raise RefusedError(f"{address} says: {answer['refused']}")
        if answer["size"] != held.size:
            raise ValueError(f"it has {answer['size']!r:.40} bytes there, expected {held.size:,}")
        descriptor = self._buffer(held.size)
        try:
            crc32 = wire.receive_piece(sock, descriptor, held.size)
            if crc32 != held.crc32:
                raise ValueError(f"it has the checksum {crc32:08x} there, expected {held.crc32:08x}")
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def _buffer(self, size: int) -> int:
        why = self._gate(rounded(size))
        if why:
            raise RefusedError(why)
        self._make_way(rounded(size))
        return made(size)


def no_way(_size: int) -> None:
    """Nothing else uses memory that could be freed."""


def made(size: int) -> int:
    """A new buffer. Raises RefusedError."""
    try:
        return make_buffer(size)
    except OSError as error:
        raise RefusedError(
            f"{decide.mebibytes(size)} of memory could not be had: {error.strerror}"
        ) from error
