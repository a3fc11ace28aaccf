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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from elasticjob.memory import decide, wire
from elasticjob.memory.pieces import Held, Inventory, PieceName, Save
from elasticjob.memory.shelf import Piece, Shelf, capacity, inode, make_buffer, rounded

logger = logging.getLogger(__name__)

MEET_SECONDS = 30.0
"""How long to wait until the other members of the round are known."""


class RefusedError(Exception):
    """What was asked for is not possible, and why: a sentence for the script's log."""


@dataclass(frozen=True)
class Members:
    """What an agent knows of the other members of its round."""

    token: str
    """Each connection between members begins with it."""
    address: str
    """At which members reach this agent."""
    partner: str = ""
    """The address to which its copies go; "" if they go to no other agent."""


@dataclass(frozen=True)
class Round:
    """A round of this agent. Two are the same if they have the same ``key``."""

    job: str
    number: int
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    """The agent's workers say it with each connection."""
    members: Members | None = None
    """None until the members have met."""


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
    more would leave the container too little memory, "" if they may be used. All methods may be called by any
    thread."""

    def __init__(self, limit: int, gate: Callable[[int], str]) -> None:
        self.limit = limit
        self._gate = gate
        self._changed = threading.Condition()
        self._shelf = Shelf()
        self._round = Round("", 0)
        self._complete: Save | None = None
        self._all_stay = False
        self._off = ""
        self._fetched: dict[tuple[PieceName, str], Piece] = {}
        self._fetching = threading.Lock()
        self._waiting: list[Piece] = []
        self._closed = False
        self.agent = secrets.token_hex(8)

    # -- the agent ---------------------------------------------------------------------------------------

    def begin(self, job: str, number: int) -> str:
        """The agent has entered a round: from now on it takes pieces of no other. Returns the round's key."""
        with self._changed:
            self._round, self._complete, self._all_stay = Round(job, number), None, False
            self._waiting.clear()
            self._shelf.free_spare()
            self._shelf.lent.clear()
            self._shelf.drop([name for name in self._shelf.names() if name.job != job], number)
            self._forget_fetched()
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
            self._forget_fetched()

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

    def enter(self, key: str) -> Round:
        """The round of a worker that has said this key. Raises RefusedError."""
        return self._present(key)

    def state_of(self, key: str, name: PieceName | None) -> wire.Message:
        """Why it takes no more pieces ("" if it does), whether the copy of this piece has ended, and why it
        failed, and whether all members go on after this round. A piece that is not there has failed."""
        with self._changed:
            self._present(key)
            answer: wire.Message = {"off": self._off, "ended": True, "why": "", "all_stay": self._all_stay}
            if name is not None:
                piece = self._shelf.pieces.get(name)
                why = "it is not there any more" if piece is None else piece.why
                answer |= {"ended": piece is None or piece.ended, "why": why}
            return answer

    def await_copy(self, key: str, name: PieceName, seconds: float) -> None:
        """Wait until the copy of this piece has ended."""

        def ended() -> bool:
            piece = self._shelf.pieces.get(name)
            return self._round.key != key or self._closed or piece is None or piece.ended

        with self._changed:
            self._changed.wait_for(ended, seconds)

    def lend(self, key: str, size: int, complete: Save | None, stale: Iterable[PieceName]) -> int:
        """A buffer for a piece of this size; its descriptor is the caller's. ``complete``: the newest save of
        this round that all ranks have completed; ``stale``: pieces that the worker writes over.

        Raises RefusedError if there is no room for it.
        """
        with self._changed:
            self._present(key)
            self._drop_superseded(complete)
            self._shelf.drop(stale, self._round.number)
            descriptor = self._buffer(size, own=True)
            self._shelf.lent[inode(descriptor)] = capacity(descriptor)
            return descriptor

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
                self._shelf.add(piece)
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
            unsummed = [piece for piece in self._shelf.pieces.values() if piece.crc32 is None]
            copies = [(piece, os.dup(piece.descriptor)) for piece in unsummed]
        for piece, descriptor in copies:
            try:
                piece.crc32 = wire.checksum(descriptor, piece.size)
            finally:
                os.close(descriptor)
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

    def fetch(self, key: str, name: PieceName, address: str) -> tuple[int, int]:
        """The same for a piece that another member holds, for all workers of this agent until they have
        resumed. Raises RefusedError."""
        with self._fetching:
            with self._changed:
                present = self._present(key)
                known = (name, address) in self._fetched
            if not known:
                self._get(present, name, address)
            with self._changed:
                self._present(key)
                piece = self._fetched.get((name, address))
                if piece is None:
                    raise RefusedError(f"{name} was let go of before it was read")
                return os.dup(piece.descriptor), piece.size

    def resumed(self, key: str, save: Save | None) -> None:
        """All ranks have resumed, from this save in memory or (None) from elsewhere: let go of the rest."""
        with self._changed:
            number = self._present(key).number
            self._forget_fetched()
            if save is None and self._off:
                self._shelf.clear()
            self._shelf.drop(decide.left_over(self._shelf.names(), save, number), number)

    # -- other members -----------------------------------------------------------------------------------

    def admit(self, token: str) -> Round:
        """The round of a member that has said this token. One that has met the others earlier waits. Raises
        RefusedError."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._round.members is not None, MEET_SECONDS)
            members = self._round.members
            if members is None or not secrets.compare_digest(members.token, token):
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
            self._drop_superseded(complete)
            copies = [one for one, piece in self._shelf.pieces.items() if not piece.own]
            self._shelf.drop(decide.replaced(copies, kept, name), present.number)
            descriptor = self._buffer(size, own=False)
            self._shelf.lent[inode(descriptor)] = capacity(descriptor)
            return descriptor

    def take_copy(self, key: str, name: PieceName, size: int, crc32: int, descriptor: int) -> None:
        """The copy is there as a whole. The descriptor is the keeper's. Raises RefusedError if the round has
        ended meanwhile, and closes it."""
        try:
            with self._changed:
                self._shelf.lent.pop(inode(descriptor), None)
                self._present(key)
                self._shelf.add(Piece(name, size, descriptor, own=False, crc32=crc32, ended=True))
        except BaseException:
            os.close(descriptor)
            raise

    def was_cut(self, key: str, descriptor: int) -> None:
        """The copy has not come to its end: it does not count."""
        with self._changed:
            self._shelf.lent.pop(inode(descriptor), None)
            if self._round.key == key:
                self._shelf.give_back(descriptor, own=False)
            else:
                os.close(descriptor)

    # -- the thread that sends copies --------------------------------------------------------------------

    def next_copy(self) -> Copy | None:
        """Wait for a piece that is to be copied. None: the agent ends."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._closed or (self._waiting and self._round.members))
                if self._closed:
                    return None
                piece = self._waiting.pop(0)
                try:
                    descriptor = os.dup(piece.descriptor)
                    break
                except OSError as error:
                    self.copied(piece, None, f"{piece.name} was not copied: {error}")
            own = [name for name, one in self._shelf.pieces.items() if one.own]
            kept = tuple(name for name in own if _same_rank(name, piece.name))
            return Copy(self._round, piece, descriptor, kept, self._complete)

    def copied(self, piece: Piece, crc32: int | None, why: str) -> None:
        """The copy has ended; ``why`` it failed, "" if it has not."""
        with self._changed:
            piece.crc32 = piece.crc32 if crc32 is None else crc32
            piece.ended, piece.why = True, why
            self._changed.notify_all()

    # -- with the lock -----------------------------------------------------------------------------------

    def _present(self, key: str) -> Round:
        with self._changed:
            if not secrets.compare_digest(self._round.key, key):
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

    def _buffer(self, size: int, *, own: bool) -> int:
        if self._off:
            raise RefusedError(self._off)
        descriptor = self._shelf.spare(size, own=own)
        if descriptor is not None:
            return descriptor
        if decide.room(self.limit, self._shelf.held(), rounded(size)):
            self._shelf.free_spare()
        why = decide.room(self.limit, self._shelf.held(), rounded(size)) or self._gate(rounded(size))
        if why:
            raise RefusedError(why)
        return _made(size)

    def _forget_fetched(self) -> None:
        while self._fetched:
            os.close(self._fetched.popitem()[1].descriptor)

    # -- without the lock --------------------------------------------------------------------------------

    def _get(self, present: Round, name: PieceName, address: str) -> None:
        """Get a piece from another member."""
        if present.members is None or not present.members.address or not address:
            raise RefusedError(f"{name} is in another pod, and this one takes nothing from others")
        try:
            with wire.connect(address, present.members.token) as sock:
                wire.send(sock, {"what": "get", "name": name.fields()})
                answer = wire.receive(sock)
                if "refused" in answer:
                    raise RefusedError(f"{address} says: {answer['refused']}")
                size = int(answer["size"])
                piece = Piece(name, size, self._fetch_buffer(size), own=False)
                try:
                    wire.receive_piece(sock, piece.descriptor, size)
                except BaseException:
                    os.close(piece.descriptor)
                    raise
        except (OSError, ValueError, KeyError) as error:
            raise RefusedError(f"{name} did not come from {address}: {error}") from error
        with self._changed:
            self._fetched[name, address] = piece

    def _fetch_buffer(self, size: int) -> int:
        why = self._gate(rounded(size))
        if why:
            raise RefusedError(why)
        return _made(size)


def _same_rank(one: PieceName, other: PieceName) -> bool:
    return (one.rank, one.save.round) == (other.rank, other.save.round)


def _made(size: int) -> int:
    try:
        return make_buffer(size)
    except OSError as error:
        raise RefusedError(
            f"{decide.mebibytes(size)} of memory could not be had: {error.strerror}"
        ) from error
