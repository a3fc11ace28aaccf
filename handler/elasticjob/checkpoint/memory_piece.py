"""What is in a piece: the tensors and other values that one rank saves, and an index of them.

    tensors, each at a multiple of 64 bytes | other values | index | DCP's metadata (rank 0) | name | footer

The index says where each item begins and how long it is; type and shape of tensors are in the metadata. The
name is that of the piece: what any agent gives away by mistake in its place is refused.
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
from elasticjob.checkpoint.memory_map import copy_all, cuda_device
from elasticjob.checkpoint.trust import check_index
from elasticjob.memory.pieces import PieceName

ALIGNED = 64
FOOTER = struct.Struct("!8sQQQQI")
"""Magic, where the index begins, how long index, metadata and name are, and the CRC-32 of these three."""
MAGIC = b"ejpiece2"


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

    ``planner`` has the state, and ``items`` are this rank's share of it; ``metadata`` is pickled, b"" but on
    rank 0. ``name`` is that of the piece.
    """

    def __init__(
        self, planner: SavePlanner, items: Sequence[WriteItem], metadata: bytes, name: PieceName
    ) -> None:
        self._tensors: list[tuple[torch.Tensor, Spot]] = []
        spots: dict[Key, Spot] = {}
        end = 0
        for item in items:
            if item.type != WriteItemType.BYTE_IO:
                spot = Spot(end, _tensor_bytes(item))
                source = cast(torch.Tensor, planner.resolve_data(item)).detach()
                self._tensors.append((source, spot))
                spots[key_of(item.index)] = spot
                end += -(-spot.size // ALIGNED) * ALIGNED
        self.devices = {device for source, _ in self._tensors if (device := cuda_device(source))}
        """The GPUs that have tensors of it."""
        self._tail_at = end
        values = []
        for item in items:
            if item.type == WriteItemType.BYTE_IO:
                value = cast(io.BytesIO, planner.resolve_data(item)).getvalue()
                values.append(value)
                spots[key_of(item.index)] = Spot(end, len(value))
                end += len(value)
        index = json.dumps([[key.name, key.offsets, *spot] for key, spot in spots.items()]).encode()
        named = _named(name)
        crc32 = zlib.crc32(index + metadata + named)
        footer = FOOTER.pack(MAGIC, end, len(index), len(metadata), len(named), crc32)
        self._tail = b"".join([*values, index, metadata, named, footer])
        self.size = self._tail_at + len(self._tail)

    def write(self, memory: torch.Tensor) -> None:
        """Copy everything into this memory, a tensor of at least ``size`` bytes. From a GPU too the copy is
        complete when this returns."""
        copy_all(
            (
                (memory[spot.begin : spot.begin + spot.size].view(source.dtype).view(source.shape), source)
                for source, spot in self._tensors
                if spot.size
            ),
            self.devices,
        )
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


def check_name(piece: memoryview, name: PieceName) -> None:
    """Raises PieceError if this is not the piece of that name."""
    _parts(piece, name)


def read_index(piece: memoryview, name: PieceName) -> Index:
    """The index of a whole piece. Raises PieceError if there is none, or if the piece has another name."""
    begin, index, pickled = _parts(piece, name)
    spots = {}
    for key, offsets, at, size in json.loads(index):
        if not 0 <= at <= at + size <= begin:
            raise PieceError(f"its index says that {key} is outside of it")
        spots[Key(key, None if offsets is None else tuple(offsets))] = Spot(at, size)
    return Index(spots, pickled)


def _parts(piece: memoryview, name: PieceName) -> tuple[int, bytes, bytes]:
    """Where its index begins, the index and the metadata."""
    if len(piece) < FOOTER.size:
        raise PieceError(f"it has {len(piece)} bytes, fewer than its footer")
    magic, begin, length, pickled, named, crc32 = FOOTER.unpack(piece[-FOOTER.size :])
    if magic != MAGIC or begin + length + pickled + named + FOOTER.size != len(piece):
        raise PieceError("its footer is not that of a piece")
    content = bytes(piece[begin : -FOOTER.size])
    if zlib.crc32(content) != crc32:
        raise PieceError("its index has another checksum than its footer says")
    if content[length + pickled :] != _named(name):
        raise PieceError(f"{content[length + pickled :]!r:.200} is in the place of {name}")
    return begin, content[:length], content[length : length + pickled]


def _named(name: PieceName) -> bytes:
    return json.dumps(name.fields()).encode()


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
