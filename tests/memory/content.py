"""The state of a save, in the real format of a piece, and what is loaded of it. Each rank has its own
items."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlanner, TensorWriteData, WriteItem, WriteItemType

from elasticjob.checkpoint.memory_load import Pieces, WholeIndex
from elasticjob.checkpoint.memory_piece import Content, PieceError
from elasticjob.memory.decide import Candidate
from elasticjob.memory.pieces import PieceName

NUMBERS, BYTES = 16, 40
State = dict[str, bytes]

_PROPERTIES = TensorProperties(dtype=torch.int64)
_CHUNK = ChunkStorageMetadata(torch.Size([0]), torch.Size([NUMBERS]))


def state_of(seed: int, name: PieceName) -> State:
    """What this rank has at this step; another one at any other."""
    draw = random.Random(f"{seed} {name}{name.save}")
    return {f"numbers{name.rank}": draw.randbytes(8 * NUMBERS), f"bytes{name.rank}": draw.randbytes(BYTES)}


def content_of(state: State, name: PieceName) -> Content:
    """The piece of this state."""

    def resolve_data(item: WriteItem) -> torch.Tensor | io.BytesIO:
        value = state[item.index.fqn]
        if item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(value)
        return torch.frombuffer(bytearray(value), dtype=torch.int64)

    items = [
        WriteItem(
            _index(f"numbers{name.rank}"),
            WriteItemType.TENSOR,
            tensor_data=TensorWriteData(_CHUNK, _PROPERTIES, torch.Size([NUMBERS])),
        ),
        WriteItem(MetadataIndex(f"bytes{name.rank}"), WriteItemType.BYTE_IO),
    ]
    planner = cast(SavePlanner, SimpleNamespace(resolve_data=resolve_data))
    metadata = b"" if name.rank else pickle.dumps(_metadata(name.save.world))
    return Content(planner, items, metadata, name)


def load(pieces: Sequence[Pieces], candidate: Candidate) -> State | str:
    """The whole state, as each of the ranks with these ``pieces`` loads it; or why one cannot."""
    shares = [one.read_share() for one in pieces]
    if problem := next((share for share in shares if isinstance(share, str)), ""):
        return problem
    index = WholeIndex((share for share in shares if not isinstance(share, str)), str(candidate.save))
    found: State = {}
    try:
        for one in pieces:
            found = _read(one, index, candidate.save.world)
    except PieceError as error:
        return str(error)
    return found


def _read(pieces: Pieces, index: WholeIndex, world: int) -> State:
    found = {}
    for rank in range(world):
        for item in (_index(f"numbers{rank}"), MetadataIndex(f"bytes{rank}")):
            at, spot = index.find(cast(Any, SimpleNamespace(storage_index=item)))
            found[item.fqn] = pieces.open(at)[spot.begin : spot.begin + spot.size]
    return found


def _index(name: str) -> MetadataIndex:
    return MetadataIndex(name, torch.Size([0]), 0)


def _metadata(world: int) -> Metadata:
    found: dict[str, Any] = {}
    for rank in range(world):
        found[f"numbers{rank}"] = TensorStorageMetadata(_PROPERTIES, torch.Size([NUMBERS]), [_CHUNK])
        found[f"bytes{rank}"] = BytesStorageMetadata()
    return Metadata(found)
