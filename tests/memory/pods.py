"""The pods of a history: real keepers and senders of copies, and workers that save by the real rules.

What is played is the order in which things happen: there is one thread.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator

import torch

from elasticjob.checkpoint.memory_load import Pieces
from elasticjob.memory.client import AgentError
from elasticjob.memory.copies import Copies
from elasticjob.memory.decide import Candidate
from elasticjob.memory.keeper import Keeper
from elasticjob.memory.membership import Members
from elasticjob.memory.pieces import Held, PieceName, Save
from elasticjob.memory.refused import RefusedError
from elasticjob.memory.saving import Saves
from elasticjob.memory.shelf import Ended, inode
from tests.memory.content import State, content_of
from tests.memory.ledger import Ledger
from tests.memory.network import Network

JOB, FOLDER = "job", "folder"
LIMIT = 1 << 26


class Pod:
    """One agent."""

    def __init__(self, number: int, network: Network, ledger: Ledger) -> None:
        self.number = number
        self.address = f"pod{number}:1"
        self.keeper = Keeper(LIMIT, lambda _: "")
        self.copies = Copies(self.keeper)
        self.workers: list[Worker] = []
        self.key = ""
        self.partner: Pod | None = None
        self._network, self._ledger = network, ledger
        network.keepers[self.address] = self.keeper

    def enter(self, number: int) -> None:
        """As ``Service.begin``."""
        self.key = self.keeper.begin(JOB, number)
        self.copies.cut()

    def meet(self, token: str, partner: Pod) -> None:
        """The members know each other."""
        self.partner = None if partner is self else partner
        address = "" if self.partner is None else partner.address
        self.keeper.meet(self.key, Members(token, self.address, address))

    def waits(self) -> bool:
        """Whether a piece is still to be copied."""
        pieces = self.keeper._shelf.pieces
        return any(pieces.get(piece.name) is piece for piece in self.keeper._waiting)

    def copy_one(self, cut_at: float | None = None) -> str:
        """Copy the next piece, if there is one; why that failed."""
        if not self.waits():
            return ""
        copy = self.keeper.next_copy()
        assert copy is not None
        self._network.cut_at = cut_at
        self.copies.work(copy)
        self._network.cut_at = None
        self._network.settle()
        ended = copy.piece.ended or Ended()
        if ended.copied and self.partner is not None:
            self._ledger.copied(copy.piece.name, self.partner.number)
        return ended.why

    def close(self) -> None:
        """It is lost, with all that it holds."""
        self._network.keepers.pop(self.address, None)
        self.keeper.close()
        self.copies._close()
        self._network.settle()


class Worker:
    """One rank: what ``MemoryTier`` does between its collectives. As an ``Agent`` to what loads pieces."""

    def __init__(self, pod: Pod, rank: int, world: int, number: int, opening: int, ledger: Ledger) -> None:
        self.pod, self.rank, self.key = pod, rank, pod.key
        self.saves = Saves()
        self._world, self._number, self._opening = world, number, opening
        self._ledger = ledger
        self._descriptor: int | None = None

    def name(self, step: int) -> PieceName:
        save = Save(1, self._number, self._opening, step, self._world)
        return PieceName(JOB, FOLDER, save, self.rank)

    def last(self) -> Ended | None:
        """How the copy of the save before has ended; None: not yet."""
        said = self.pod.keeper.state_of(self.key, self.saves.last)
        return Ended(why=str(said["why"]), alone=str(said["alone"])) if said["ended"] else None

    def save(self, step: int, state: State) -> Iterator[str]:
        """Save it, moment after moment: between any two it may be killed."""
        name = self.name(step)
        stale = self.saves.begin(name)
        content = content_of(state, name)
        yield "begun"
        self._descriptor = self.pod.keeper.lend(self.key, self.rank, content.size, self.saves.complete, stale)
        if self.key == self.pod.key:
            self._ledger.written_over(stale)
        yield "lent"
        content.write(mapped(self._descriptor, content.size))
        yield "written"
        descriptor, self._descriptor = self._descriptor, None
        self.pod.keeper.take(self.key, name, content.size, descriptor)
        self._ledger.taken(name, state, self.pod.number)
        yield "taken"

    def die(self) -> None:
        """Its memory that no agent has is freed."""
        if self._descriptor is not None:
            self.pod.keeper.take_back([inode(self._descriptor)])
            os.close(self._descriptor)
            self._descriptor = None

    def pieces(self, candidate: Candidate) -> Pieces:
        return Pieces(self, self.pod.keeper.agent, candidate, self.rank, 60)  # type: ignore[arg-type]

    def lease(self, name: PieceName) -> int:
        return _answered(lambda: self.pod.keeper.lease(self.key, name)[0])

    def fetch(self, held: Held, address: str, seconds: float) -> int:
        return _answered(lambda: self.pod.keeper.fetch(self.key, held, address, seconds))


def mapped(descriptor: int, size: int) -> torch.Tensor:
    """The memory of a buffer, as a worker has it."""
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)


def _answered(call: Callable[[], int]) -> int:
    try:
        return call()
    except RefusedError as error:
        raise AgentError(str(error)) from error
