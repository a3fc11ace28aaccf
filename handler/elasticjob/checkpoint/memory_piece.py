"""What is in a piece: the tensors and other values that one rank saves, and an index of them.

    tensors, each at a multiple of 64 bytes | other values | index | DCP's metadata (rank 0 only) | footer

The index says where each item begins and how long it is; type and shape of tensors are in the metadata.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType

from elasticjob.checkpoint.errors import CheckpointError
from elasticjob.checkpoint.trust import check_index

ALIGNED = 64
FOOTER = struct.Struct("!8sQQQI")
"""Magic, where the index begins, how long index and metadata are, and the CRC-32 of both."""
MAGIC = b"ejpiece1"


class PieceError(CheckpointError):
    """A piece cannot be read: it is damaged, or no member gives it away."""


class Key(NamedTuple):
    """An item of a state, as DCP names it."""

    name: str
    offsets: tuple[int, ...] | None
    """Where a part of a tensor begins in the whole; None for what is no tensor."""


class Spot(NamedTuple):
    """Where an item is in its piece, in bytes."""

    begin: int
    size: int


def key_of(index: MetadataIndex) -> Key:
    """The key of an item."""
    return Key(index.fqn, None if index.offset is None else tuple(index.offset))


class Content:
    """What a rank is about to save. ``size`` is that of the piece, in bytes.

    ``planner`` has the state, and ``items`` are this rank's share of it; ``metadata`` is None but on rank 0.
    """

    def __init__(self, planner: SavePlanner, items: Sequence[WriteItem], metadata: Metadata | None) -> None:
        self._planner = planner
        self._tensors: list[tuple[WriteItem, Spot]] = []
        spots: dict[Key, Spot] = {}
        end = 0
        for item in items:
            if item.type != WriteItemType.BYTE_IO:
                spot = Spot(end, _tensor_bytes(item))
                self._tensors.append((item, spot))
                spots[key_of(item.index)] = spot
                end += -(-spot.size // ALIGNED) * ALIGNED
        self._tail_at = end
        values = []
        for item in items:
            if item.type == WriteItemType.BYTE_IO:
                value = cast(io.BytesIO, planner.resolve_data(item)).getvalue()
                values.append(value)
                spots[key_of(item.index)] = Spot(end, len(value))
                end += len(value)
        index = json.dumps([[key.name, key.offsets, *spot] for key, spot in spots.items()]).encode()
        pickled = b"" if metadata is None else pickle.dumps(metadata)
        footer = FOOTER.pack(MAGIC, end, len(index), len(pickled), zlib.crc32(index + pickled))
        self._tail = b"".join([*values, index, pickled, footer])
        self.size = self._tail_at + len(self._tail)

    def write(self, memory: torch.Tensor) -> None:
        """Copy everything into this memory, a tensor of at least ``size`` bytes.

        From a GPU too the copy is complete when this returns, in the stream in which training computes.
        """
        for item, spot in self._tensors:
            if spot.size:
                source = cast(torch.Tensor, self._planner.resolve_data(item)).detach()
                part = memory[spot.begin : spot.begin + spot.size]
                part.view(source.dtype).view(source.shape).copy_(source)
        tail = torch.frombuffer(bytearray(self._tail), dtype=torch.uint8)
        memory[self._tail_at : self.size].copy_(tail)


def _tensor_bytes(item: WriteItem) -> int:
    assert item.tensor_data is not None
    count = 1
    for length in item.tensor_data.chunk.sizes:
        count *= length
    return count * item.tensor_data.properties.dtype.itemsize


class Index(NamedTuple):
    """The index of a piece."""

    spots: dict[Key, Spot]
    metadata: bytes
    """Pickled, b"" but in the piece of rank 0."""


def read_index(piece: memoryview) -> Index:
    """The index of a whole piece. Raises PieceError if there is none."""
    if len(piece) < FOOTER.size:
        raise PieceError(f"it has {len(piece)} bytes, fewer than its footer")
    magic, begin, length, pickled, crc32 = FOOTER.unpack(piece[-FOOTER.size :])
    if magic != MAGIC or begin + length + pickled + FOOTER.size != len(piece):
        raise PieceError("its footer is not that of a piece")
    content = bytes(piece[begin : begin + length + pickled])
    if zlib.crc32(content) != crc32:
        raise PieceError("its index has another checksum than its footer says")
    spots = {}
    for name, offsets, at, size in json.loads(content[:length]):
        if not 0 <= at <= at + size <= begin:
            raise PieceError(f"its index says that {name} is outside of it")
        spots[Key(name, None if offsets is None else tuple(offsets))] = Spot(at, size)
    return Index(spots, content[length:])


def read_metadata(pickled: bytes, where: str) -> Metadata:
    """DCP's metadata. Raises UntrustedError if it would run code; ``where`` it is from."""
    check_index(where, pickled)
    return cast(Metadata, pickle.loads(pickled))


def read_tensor(piece: torch.Tensor, spot: Spot, index: MetadataIndex, metadata: Metadata) -> torch.Tensor:
    """The part of a tensor that is at this spot, not copied. Raises PieceError if the metadata has none."""
    whole = metadata.state_dict_metadata.get(index.fqn)
    chunks = whole.chunks if isinstance(whole, TensorStorageMetadata) else []
    if index.index is not None and index.index < len(chunks):
        chunks = [chunks[index.index], *chunks]  # where it should be
    chunk = next((one for one in chunks if one.offsets == index.offset), None)
    if chunk is None or not isinstance(whole, TensorStorageMetadata):
        raise PieceError(f"its metadata does not say what {index.fqn} at {index.offset} is")
    memory = piece[spot.begin : spot.begin + spot.size]
    return memory.view(whole.properties.dtype).view(chunk.sizes)
