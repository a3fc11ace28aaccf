"""Which pickles pass as an index of DCP."""

from __future__ import annotations

import builtins
import enum
import os
import pickle
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata

from elasticjob.checkpoint.trust import UntrustedError, check_index


def index() -> metadata.Metadata:
    """With a tensor, whose properties have a member of an Enum."""
    properties = metadata.TensorProperties.create_from_tensor(torch.zeros(2))
    chunk = metadata.ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    return metadata.Metadata(
        {"weights": metadata.TensorStorageMetadata(properties, torch.Size([2]), [chunk])}
    )


def as_python_3_11_2(self: enum.Enum, _: int) -> tuple[Any, ...]:
    """How Python 3.11.0 to 3.11.3 pickle a member of an Enum."""
    return getattr, (type(self), self.name)


def test_an_index_that_an_early_python_3_11_has_written_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", as_python_3_11_2)
    content = pickle.dumps(index())
    assert b"getattr" in content
    check_index(".metadata", content)


class Attribute:
    """Pickled as the attribute of something."""

    def __init__(self, of: Any, name: str) -> None:
        self.arguments = (of, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return builtins.getattr, self.arguments


@pytest.mark.parametrize(
    "attribute",
    [
        Attribute(os.system, "__call__"),
        Attribute(torch.float32, "to_complex"),
        Attribute(metadata.Metadata, "__init__"),
        Attribute(metadata.Metadata, "__class__"),
        Attribute(metadata._MEM_FORMAT_ENCODING, "__class__"),
        Attribute(metadata._MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT, "name"),
    ],
    ids=lambda attribute: str(attribute.arguments),
)
def test_no_other_attribute_can_be_reached(attribute: Attribute) -> None:
    with pytest.raises(UntrustedError, match="which is no part of an index of DCP"):
        check_index(".metadata", pickle.dumps(attribute))
