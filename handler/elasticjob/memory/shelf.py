"""The memory that an agent holds: pieces, and buffers for the next ones. Its caller holds a lock.

All of it is in memfds, which the kernel frees when the last descriptor and mapping is gone. A buffer's pages
are allocated when it is made, so that a worker that writes into it is never killed by SIGBUS, and are used
again for the next piece: touching new pages takes several times as long as the copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from elasticjob.memory.pieces import PieceName

ROUND_UP = 1 << 16
"""Buffers have a multiple of this size: the parts of a state that are not tensors change it a little."""


@dataclass(frozen=True)
class Ended:
    """How the copy of a piece to another agent has ended."""

    crc32: int | None = None
    why: str = ""
    """Why it failed; "" if it has not."""
    copied: bool = False
    """Whether another agent has it."""
    alone: str = ""
    """Why no other agent has it, though one should; "" if there is none for it."""


@dataclass
class Piece:
    """A piece and its descriptor. ``crc32`` None: it was not computed yet."""

    name: PieceName
    size: int
    descriptor: int
    own: bool
    crc32: int | None = None
    ended: Ended | None = None
    """How its copy to another agent has ended; None while it is under way."""


@dataclass
class _Buffer:
    descriptor: int
    capacity: int


class Shelf:
    """Pieces by name, own ones and copies; spare buffers, each for the rank whose piece it was; sizes of the
    buffers that are with a worker. A worker of this round may have mapped an own spare buffer, so these are
    never used for copies, nor for another worker, which would have to map them."""

    def __init__(self) -> None:
        self.pieces: dict[PieceName, Piece] = {}
        self._spare: dict[tuple[bool, int], list[_Buffer]] = {}
        """By whether it is for own pieces, and rank."""
        self.lent: dict[int, int] = {}
        """Capacity by inode."""
        self.promised = 0
        """Bytes of buffers that are being made."""

    def names(self) -> list[PieceName]:
        """Of all pieces."""
        return list(self.pieces)

    def held(self) -> dict[str, int]:
        """Bytes by kind."""
        pieces = self.pieces.values()
        return {
            "own pieces": sum(capacity(one.descriptor) for one in pieces if one.own),
            "copies for others": sum(capacity(one.descriptor) for one in pieces if not one.own),
            "buffers": sum(self.lent.values()) + self._spare_bytes() + self.promised,
        }

    def _spare_bytes(self) -> int:
        return sum(one.capacity for buffers in self._spare.values() for one in buffers)

    def add(self, piece: Piece) -> None:
        """Put a piece there. There is none of its name."""
        self.pieces[piece.name] = piece

    def spare(self, size: int, *, own: bool, rank: int) -> int | None:
        """A spare buffer of this rank for ``size`` bytes, which is the caller's from now on; None if there is
        none. Those of it that are too small are freed: its part of the state has grown."""
        buffers = self._spare.get((own, rank), [])
        for one in [one for one in buffers if one.capacity < size]:
            buffers.remove(one)
            os.close(one.descriptor)
        if not buffers:
            return None
        one = min(buffers, key=lambda one: one.capacity)
        buffers.remove(one)
        return one.descriptor

    def give_back(self, descriptor: int, *, own: bool, rank: int) -> None:
        """Use this buffer for the next piece of the rank."""
        self._spare.setdefault((own, rank), []).append(_Buffer(descriptor, capacity(descriptor)))

    def drop(self, names: Iterable[PieceName], reused_of_round: int) -> None:
        """Let pieces go. The buffers of those that this round has saved are used again; a process of a former
        round may still have mapped the others, and one that is being copied may not change."""
        for name in names:
            piece = self.pieces.pop(name, None)
            if piece is None:
                continue
            if name.save.round == reused_of_round and piece.ended is not None:
                self.give_back(piece.descriptor, own=piece.own, rank=name.rank)
            else:
                os.close(piece.descriptor)

    def free_spare(self) -> None:
        """Free all spare buffers."""
        for buffers in self._spare.values():
            while buffers:
                os.close(buffers.pop().descriptor)

    def clear(self) -> None:
        """Free everything."""
        self.free_spare()
        while self.pieces:
            os.close(self.pieces.popitem()[1].descriptor)


def make_buffer(size: int) -> int:
    """A new memfd of at least this size, its pages allocated. Raises OSError."""
    descriptor = os.memfd_create("elasticjob-memory", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, rounded(size))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def rounded(size: int) -> int:
    """The size of a buffer for ``size`` bytes."""
    return -(-max(size, 1) // ROUND_UP) * ROUND_UP


def capacity(descriptor: int) -> int:
    """The size of a buffer."""
    return os.fstat(descriptor).st_size


def inode(descriptor: int) -> int:
    """What is the same for all descriptors of a memfd."""
    return os.fstat(descriptor).st_ino
