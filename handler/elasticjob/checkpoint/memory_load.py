"""Loading a save from memory: which pieces a rank opens, and how DCP reads them."""

from __future__ import annotations

import io
import mmap
import os
import time
import zlib
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from elasticjob.checkpoint.memory_piece import (
    Index,
    Key,
    PieceError,
    Spot,
    check_name,
    key_of,
    read_index,
    read_metadata,
    read_tensor,
)
from elasticjob.memory.client import Agent, AgentError
from elasticjob.memory.decide import Candidate, Holder
from elasticjob.memory.pieces import Held


class Pieces:
    """The pieces of one save that this rank has opened. ``mine``: the name of its own agent; ``seconds``:
    how long it may take to get all those of other agents.

    A piece is mapped privately: what is written there changes no piece.
    """

    def __init__(self, agent: Agent, mine: str, candidate: Candidate, rank: int, seconds: float) -> None:
        self._agent = agent
        self._mine = mine
        self._candidate = candidate
        self._rank = rank
        self._ends = time.monotonic() + seconds
        self._open: dict[int, mmap.mmap] = {}
        self.from_peers: set[int] = set()
        """Those that its agent has got from another one."""
        self.passed_over: list[str] = []
        """Holders whose piece was damaged, or that did not give it away."""

    def near(self) -> set[int]:
        """The ranks whose pieces its own agent holds."""
        pieces = enumerate(self._candidate.pieces)
        return {rank for rank, holders in pieces if any(one.inventory.agent == self._mine for one in holders)}

    def open(self, rank: int) -> mmap.mmap:
        """The piece of ``rank``, its checksum verified: from the own agent, else from another one. Raises
        PieceError if no holder has a good one."""
        if rank not in self._open:
            self._open[rank] = self._opened(rank)
        return self._open[rank]

    def open_all(self, ranks: Iterable[int]) -> None:
        """Open those of these ranks. Each rank begins at another one, so that not all ask the same holder."""
        world = len(self._candidate.pieces)
        for rank in sorted(ranks, key=lambda rank: (rank - self._rank) % world):
            self.open(rank)

    def _opened(self, rank: int) -> mmap.mmap:
        problems = []
        for holder in self._in_order(self._candidate.pieces[rank]):
            near = holder.inventory.agent == self._mine
            try:
                mapped = self._map(holder, near)
            except (AgentError, OSError, ValueError) as error:
                problems.append(str(error))
                continue
            problem = what_is_wrong(mapped, holder.held)
            if not problem:
                self.passed_over += problems
                if not near:
                    self.from_peers.add(rank)
                return mapped
            mapped.close()
            where = "its own agent" if near else f"the agent at {holder.inventory.address}"
            problems.append(f"{holder.held.name} at {where}: {problem}")
        raise PieceError("; ".join(problems))

    def _in_order(self, holders: tuple[Holder, ...]) -> list[Holder]:
        """The own agent first; of the others, not all ranks ask the same."""
        turn = self._rank % len(holders)
        turned = [*holders[turn:], *holders[:turn]]
        return sorted(turned, key=lambda holder: holder.inventory.agent != self._mine)

    def _map(self, holder: Holder, near: bool) -> mmap.mmap:
        held = holder.held
        if near:
            descriptor = self._agent.lease(held.name)
        else:
            left = self._ends - time.monotonic()
            descriptor = self._agent.fetch(held, holder.inventory.address, left)
        try:
            return mmap.mmap(descriptor, held.size, access=mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Map none of them any more: an error of DCP keeps what has raised it, and this, for a while."""
        self._open.clear()

    def read_share(self) -> dict[int, Index] | str:
        """The indexes that this rank reads for all; or why one cannot be read."""
        try:
            return {
                rank: self._index(rank)
                for rank, reader in enumerate(self._candidate.readers())
                if reader == self._rank
            }
        except PieceError as error:
            return str(error)

    def _index(self, rank: int) -> Index:
        with memoryview(self.open(rank)) as view:
            return read_index(view, self._candidate.pieces[rank][0].held.name)


def what_is_wrong(mapped: mmap.mmap, held: Held) -> str:
    """Why this is not the piece that an agent has said it holds; "" if it is."""
    found = zlib.crc32(mapped)
    if found != held.crc32:
        return f"it has the checksum {found:08x}, expected {held.crc32:08x}"
    with memoryview(mapped) as view:
        try:
            check_name(view, held.name)
        except PieceError as error:
            return str(error)
    return ""


class WholeIndex:
    """The index of a save: in which piece each item is, and where. If several have it, one of ``near``, the
    ranks whose pieces need not come from another pod."""

    def __init__(self, shares: Iterable[dict[int, Index]], what: str, near: Collection[int] = ()) -> None:
        pickled = b""
        self.spots: dict[Key, tuple[int, Spot]] = {}
        for share in shares:
            for rank, index in share.items():
                for key, spot in index.spots.items():
                    if key not in self.spots or rank in near:
                        self.spots[key] = (rank, spot)
                pickled = pickled or index.metadata
        self.metadata = read_metadata(pickled, what)

    def find(self, item: ReadItem) -> tuple[int, Spot]:
        """The piece of an item, and where it is there. Raises PieceError."""
        found = self.spots.get(key_of(item.storage_index))
        if found is None:
            raise PieceError(f"no piece has {item.storage_index.fqn} at {item.storage_index.offset}")
        return found


class MemoryReader(StorageReader):
    """Reads a save for DCP. All pieces that a rank needs are opened and verified while the ranks plan, so
    that nothing of the state has changed if one cannot be read."""

    def __init__(self, pieces: Pieces, index: WholeIndex) -> None:
        self._pieces = pieces
        self._index = index

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing: there is one reader for each load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        del args, kwargs
        return self._index.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: the index is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        self._pieces.open_all({self._index.find(item)[0] for item in plan.items})
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            rank, spot = self._index.find(item)
            mapped = self._pieces.open(rank)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(mapped[spot.begin : spot.begin + spot.size]))
            else:
                self._load_tensor(item, torch.frombuffer(mapped, dtype=torch.uint8), spot, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _load_tensor(self, item: ReadItem, piece: torch.Tensor, spot: Spot, planner: LoadPlanner) -> None:
        part = read_tensor(piece, spot, item.storage_index, self._index.metadata)
        part = part[
            tuple(slice(at, at + n) for at, n in zip(item.storage_offsets, item.lengths, strict=True))
        ]
        target = planner.resolve_tensor(item).detach()
        if target.size() != part.size():
            raise ValueError(f"{item.dest_index.fqn} has the shape {target.size()}, saved was {part.size()}")
        target.copy_(part)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Memory has no addresses."""
        del checkpoint_id
        return True
