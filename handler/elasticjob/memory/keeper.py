"""Which pieces an agent takes, holds and gives away: the rules of a round.

1. It takes pieces only of its own present round: from its own workers, which say the round's key with each
   connection, and from members of the round, which say its token. So a worker that was left behind by an
   earlier round and a pod that was cut off are refused.
2. Only members of the new round are asked when training resumes.
3. A piece has a name and never changes. A copy that was cut has none.
4. Rounds come before steps: what a pod that was cut off has saved alone is older than what a later round has.
5. Which checkpoint of the storage counts is decided there, as without memory.
6. At a new round spare buffers are freed: a worker that still runs may have mapped them.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from elasticjob.memory import decide, wire
from elasticjob.memory.fetching import Fetched, made, no_way
from elasticjob.memory.membership import Members, Round, same
from elasticjob.memory.pieces import Held, Inventory, PieceName, Save
from elasticjob.memory.refused import RefusedError
from elasticjob.memory.shelf import Ended, Piece, Shelf, capacity, inode, rounded

logger = logging.getLogger(__name__)

MEET_SECONDS = 30.0
"""How long to wait until the other members of the round are known."""


@dataclass(frozen=True)
class Copy:
    """A piece that is to be sent to the partner."""

    round: Round
    piece: Piece
    descriptor: int
    """The sender's own."""
    kept: tuple[PieceName, ...]
    """The pieces of the same rank and round that this agent has."""
    complete: Save | None
    """The newest save of the round that all ranks have completed, as far as this agent knows."""


class Keeper:
    """The pieces of one agent. ``limit``: the most bytes that it holds. ``gate`` says why this many bytes
    more would leave the container too little memory, "" if they may be used; ``make_way`` frees what the gate
    has counted as free, before they are. All methods may be called by any thread."""

    def __init__(
        self, limit: int, gate: Callable[[int], str], make_way: Callable[[int], None] = no_way
    ) -> None:
        self.limit = limit
        self._gate = gate
        self._make_way = make_way
        self._changed = threading.Condition()
        self._summing = threading.Lock()
        self._shelf = Shelf()
        self._round = Round("", 0)
        self._began, self._openings = time.monotonic(), 0
        self._complete: Save | None = None
        self._folder = ""
        """Which one the workers of this round have resumed last."""
        self._parts: dict[int, int] = {}
        """By rank: the bytes of its part of the state, as far as it has saved in this round. A save to the
        storage copies them once more, for which the gate leaves room."""
        self._all_stay = False
        self._off = ""
        self._fetched = Fetched(gate, make_way)
        self._waiting: list[Piece] = []
        self._closed = False
        self.agent = secrets.token_hex(8)

    # -- the agent ---------------------------------------------------------------------------------------

    def begin(self, job: str, number: int) -> str:
        """The agent has entered a round: from now on it takes pieces of no other. Returns the round's key."""
        with self._changed:
            self._round, self._complete, self._all_stay = Round(job, number), None, False
            self._folder = ""
            self._parts.clear()
            self._began, self._openings = time.monotonic(), _first_opening()
            self._waiting.clear()
            self._shelf.free_spare()
            self._shelf.lent.clear()
            self._shelf.drop([name for name in self._shelf.names() if name.job != job], number)
            self._fetched.forget()
            self._changed.notify_all()
            return self._round.key

    def meet(self, key: str, members: Members) -> None:
        """The members of the round of this key are known."""
        with self._changed:
            if self._round.key == key:
                self._round = replace(self._round, members=members)
                self._changed.notify_all()

    def all_stay(self, number: int) -> None:
        """The round of this number drains, and all of its members go on in the next one."""
        with self._changed:
            self._all_stay = self._round.number == number

    def switch_off(self, why: str) -> None:
        """Take no more pieces. What is there can be resumed from. Calling it again changes nothing."""
        with self._changed:
            if not self._off:
                self._off = why
                logger.warning("memory checkpoints are off: %s", why)
                self._shelf.free_spare()

    def let_go(self) -> None:
        """Free all pieces: the container needs the memory."""
        with self._changed:
            self._waiting.clear()
            self._shelf.clear()
            self._fetched.forget()

    @property
    def keeps(self) -> bool:
        """Whether it takes pieces."""
        return not self._off

    def close(self) -> None:
        """Free everything; threads that wait return."""
        with self._changed:
            self._closed = True
            self._off = self._off or "torchrun ends"
            self._changed.notify_all()
        self.let_go()

    # -- its workers -------------------------------------------------------------------------------------

    def enter(self, line: bytes) -> Round:
        """The round of a worker that has said this key. Raises RefusedError."""
        return self._present(line.decode("ascii", "replace"))

    def open(self, key: str) -> int:
        """A worker has opened its checkpoints, or has resumed in them after a save: a number that is greater
        than all before in this round. Raises RefusedError."""
        with self._changed:
            self._present(key)
            self._openings += 1
            return self._openings

    def check_present(self, key: str) -> None:
        """Raises RefusedError if the round of this key is over."""
        self._present(key)

    def state_of(self, key: str, name: PieceName | None) -> wire.Message:
        """Why it takes no more pieces ("" if it does), whether the copy of this piece has ended, why it
        failed, whether another agent has it, and if not, why, and whether all members go on after this round.
        A piece that is not there has failed."""
        with self._changed:
            self._present(key)
            ended: Ended | None = Ended()
            if name is not None:
                piece = self._shelf.pieces.get(name)
                ended = Ended(why="it is not there any more") if piece is None else piece.ended
            answer: wire.Message = {"off": self._off, "ended": ended is not None, "all_stay": self._all_stay}
            if ended is not None:
                answer |= {"why": ended.why, "copied": ended.copied, "alone": ended.alone}
            return answer

    def await_copy(self, key: str, name: PieceName, seconds: float) -> None:
        """Wait until the copy of this piece has ended."""

        def ended() -> bool:
            piece = self._shelf.pieces.get(name)
            return self._round.key != key or self._closed or piece is None or piece.ended is not None

        with self._changed:
            self._changed.wait_for(ended, seconds)

    def lend(self, key: str, rank: int, size: int, complete: Save | None, stale: Iterable[PieceName]) -> int:
        """A buffer for a piece of this rank and size, its descriptor the caller's. ``complete``: the newest
        save of this round that all ranks have completed; ``stale``: pieces that the worker writes over.

        Raises RefusedError if there is no room for it.
        """
        with self._changed:
            self._present(key)
            self._drop_superseded(complete)
            self._shelf.drop(stale, self._round.number)
            self._parts[rank] = size
            descriptor = self._spare_or_promise(key, size, own=True, rank=rank)
        return self._made(key, size) if descriptor is None else descriptor

    def take_back(self, inodes: Iterable[int]) -> None:
        """Buffers that were with a worker that has gone: the kernel frees them."""
        with self._changed:
            for one in inodes:
                self._shelf.lent.pop(one, None)

    def take(self, key: str, name: PieceName, size: int, descriptor: int) -> None:
        """A worker has written a piece: from now on it outlives the worker. The descriptor is the keeper's.

        Raises RefusedError, and closes the descriptor, if the round is over or the buffer is none of ours.
        """
        try:
            with self._changed:
                present = self._present(key)
                if (name.job, name.save.round) != (present.job, present.number):
                    raise RefusedError(f"{name} is not of round {present.number}, the present one")
                if inode(descriptor) not in self._shelf.lent or not 0 < size <= capacity(descriptor):
                    raise RefusedError(f"{name} is not in a buffer that this agent has lent")
                del self._shelf.lent[inode(descriptor)]
                piece = Piece(name, size, descriptor, own=True)
                self._add(piece)
                self._waiting.append(piece)
                self._changed.notify_all()
        except BaseException:
            os.close(descriptor)
            raise

    def inventory(self, key: str) -> Inventory:
        """What is held, as soon as the members of the round have met."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._round.key != key or self._closed or self._round.members is not None,
                MEET_SECONDS,
            )
            members = self._present(key).members
        with self._summing:  # of several workers that ask at once, one computes them for all
            self._sum()
        with self._changed:
            held = [
                Held(piece.name, piece.size, piece.crc32, piece.own)
                for piece in self._shelf.pieces.values()
                if piece.crc32 is not None
            ]
        return Inventory(self.agent, members.address if members else "", tuple(held))

    def lease(self, key: str, name: PieceName) -> tuple[int, int]:
        """A descriptor, which is the caller's, and the size of a piece that is held. Raises RefusedError."""
        with self._changed:
            self._present(key)
            return self._opened(name)

    def fetch(self, key: str, held: Held, address: str, seconds: float) -> int:
        """A descriptor of a piece that another member has said it holds, for all workers of this agent until
        they have resumed. Raises RefusedError, also if it takes longer than ``seconds``."""
        with self._changed:
            members, epoch = self._present(key).members, self._fetched.epoch
        if members is None or not members.address or not address:
            raise RefusedError(f"{held.name} is in another pod, and this one takes nothing from others")
        return self._fetched.get(epoch, held, address, members.token, seconds)

    def resumed(self, key: str, folder: str, save: Save | None, opening: int) -> None:
        """All ranks have resumed, from this save in memory or (None) from elsewhere: let go of the rest of
        this folder. They save with this ``opening``."""
        with self._changed:
            number = self._present(key).number
            self._folder = folder
            self._fetched.forget()
            if save is None and self._off:
                self._shelf.clear()
            names = [name for name in self._shelf.names() if name.folder == folder]
            self._shelf.drop(decide.left_over(names, save, number, opening), number)

    # -- other members -----------------------------------------------------------------------------------

    def admit(self, line: bytes) -> Round | None:
        """The round of a member that has said this token. None while the members have not met here: one that
        has met the others earlier waits. Raises RefusedError."""
        with self._changed:
            members = self._round.members
            if members is None:
                return None
            if not same(members.token, line.decode("ascii", "replace")):
                raise RefusedError("this agent is in another round")
            return self._round

    def make_room(
        self, key: str, name: PieceName, size: int, kept: list[PieceName], complete: Save | None
    ) -> int:
        """A buffer for a copy of a piece that another member sends. ``kept``: which pieces of the same rank
        and round that one has itself. Raises RefusedError."""
        with self._changed:
            present = self._present(key)
            if (name.job, name.save.round) != (present.job, present.number):
                raise RefusedError(f"{name} is not of round {present.number}, the present one")
            if self._off:
                raise RefusedError(self._off)
            if name in self._shelf.pieces:
                raise RefusedError(f"{name} is held here already, and a piece never changes")
            self._drop_superseded(complete)
            copies = [one for one, piece in self._shelf.pieces.items() if not piece.own]
            self._shelf.drop(decide.replaced(copies, kept, name), present.number)
            descriptor = self._spare_or_promise(key, size, own=False, rank=name.rank)
        return self._made(key, size) if descriptor is None else descriptor

    def take_copy(self, key: str, name: PieceName, size: int, crc32: int, descriptor: int) -> None:
        """The copy is there as a whole. The descriptor is the keeper's. Raises RefusedError if the round has
        ended meanwhile, and closes it."""
        try:
            with self._changed:
                self._shelf.lent.pop(inode(descriptor), None)
                self._present(key)
                self._add(Piece(name, size, descriptor, own=False, crc32=crc32, ended=Ended(crc32)))
        except BaseException:
            os.close(descriptor)
            raise

    def was_cut(self, key: str, name: PieceName, descriptor: int) -> None:
        """This copy has not come to its end: it does not count."""
        with self._changed:
            self._shelf.lent.pop(inode(descriptor), None)
            if self._round.key == key:
                self._shelf.give_back(descriptor, own=False, rank=name.rank)
            else:
                os.close(descriptor)

    # -- the thread that sends copies --------------------------------------------------------------------

    def next_copy(self) -> Copy | None:
        """Wait for a piece that is to be copied. If the members of its round do not meet in time, it comes
        without them. None: the agent ends."""
        with self._changed:
            while True:
                while not (self._closed or (self._waiting and self._may_send())):
                    self._changed.wait(self._patience() if self._waiting else None)
                if self._closed:
                    return None
                piece = self._waiting.pop(0)
                if self._shelf.pieces.get(piece.name) is not piece:
                    continue  # it was let go of
                try:
                    descriptor = os.dup(piece.descriptor)
                    break
                except OSError as error:
                    self.copied(piece, Ended(why=f"{piece.name} was not copied: {error}"))
            own = [name for name, one in self._shelf.pieces.items() if one.own]
            kept = tuple(name for name in own if _same_rank(name, piece.name))
            return Copy(self._round, piece, descriptor, kept, self._complete)

    def copied(self, piece: Piece, ended: Ended) -> None:
        """The copy has ended."""
        with self._changed:
            piece.crc32 = piece.crc32 if ended.crc32 is None else ended.crc32
            piece.ended = ended
            self._changed.notify_all()

    def _may_send(self) -> bool:
        return self._round.members is not None or self._patience() <= 0

    def _patience(self) -> float:
        """How many seconds are left for the members to meet."""
        return self._began + MEET_SECONDS - time.monotonic()

    def _sum(self) -> None:
        """Take the checksums that were not taken while copies were sent."""
        copies: list[tuple[Piece, int]] = []
        with ExitStack() as stack:
            with self._changed:
                for piece in self._shelf.pieces.values():
                    if piece.crc32 is None:
                        copies.append((piece, os.dup(piece.descriptor)))
                        stack.callback(os.close, copies[-1][1])
            for piece, descriptor in copies:
                piece.crc32 = wire.checksum(descriptor, piece.size)

    # -- with the lock -----------------------------------------------------------------------------------

    def _present(self, key: str) -> Round:
        with self._changed:
            if not same(self._round.key, key):
                raise RefusedError(f"this worker's round is over: the present one is {self._round.number}")
            return self._round

    def _drop_superseded(self, complete: Save | None) -> None:
        if complete is not None and complete.round == self._round.number:
            self._complete = complete
            names = decide.superseded(self._shelf.names(), complete)
            self._shelf.drop(names, self._round.number)

    def _opened(self, name: PieceName) -> tuple[int, int]:
        piece = self._shelf.pieces.get(name)
        if piece is None:
            raise RefusedError(f"{name} is not held here any more")
        return os.dup(piece.descriptor), piece.size

    def _add(self, piece: Piece) -> None:
        if piece.name in self._shelf.pieces:
            raise RefusedError(f"{piece.name} is held here already, and a piece never changes")
        self._shelf.add(piece)

    def _spare_or_promise(self, key: str, size: int, *, own: bool, rank: int) -> int | None:
        """A spare buffer. None: there is room for a new one, which ``_made`` makes. Before that is denied,
        the pieces of other folders make room, which the script may come back to. Before the gate denies it,
        what others are making is awaited: a part of it is in use already, and would count twice."""
        while True:
            self._present(key)
            if self._off:
                raise RefusedError(self._off)
            descriptor = self._shelf.spare(size, own=own, rank=rank)
            if descriptor is not None:
                self._shelf.lent[inode(descriptor)] = capacity(descriptor)
                return descriptor
            if decide.room(self.limit, self._shelf.held(), rounded(size)):
                self._shelf.free_spare()
            full = decide.room(self.limit, self._shelf.held(), rounded(size))
            why = full or self._too_little(rounded(size) + self._shelf.promised)
            if not why:
                self._shelf.promised += rounded(size)
                return None
            if others := [name for name in self._shelf.names() if self._folder not in ("", name.folder)]:
                self._shelf.drop(others, self._round.number)
            elif full or not self._shelf.promised:
                raise RefusedError(why)
            else:
                self._changed.wait_for(lambda: not self._shelf.promised)

    def _too_little(self, size: int) -> str:
        """Why ``size`` bytes more would leave too little memory, for a save to the storage as well."""
        headroom = self._headroom()
        why = self._gate(size + headroom)
        if why and headroom:
            why += f"; {decide.mebibytes(headroom)} of what it needs are for a save to the directory"
        return why

    def _headroom(self) -> int:
        return sum(self._parts.values())

    # -- without the lock --------------------------------------------------------------------------------

    def _made(self, key: str, size: int) -> int:
        """A new buffer. To allocate it takes long, and holds up no other request."""
        descriptor = -1
        with self._changed:
            headroom = self._headroom()
        try:
            self._make_way(rounded(size) + headroom)
            descriptor = made(size)
        finally:
            with self._changed:
                self._shelf.promised -= rounded(size)
                if descriptor >= 0:
                    self._shelf.lent[inode(descriptor)] = capacity(descriptor)
                self._changed.notify_all()
        try:
            self._present(key)
        except RefusedError:
            self.take_back([inode(descriptor)])
            os.close(descriptor)
            raise
        return descriptor


def _first_opening() -> int:
    """The time in microseconds, which a piece's name has room for until 2255. If a user has deleted what
    showed a round, another one may have its number: then the later one must be the newer."""
    return time.time_ns() // 1000


def _same_rank(one: PieceName, other: PieceName) -> bool:
    return (one.rank, one.save.round) == (other.rank, other.save.round)
