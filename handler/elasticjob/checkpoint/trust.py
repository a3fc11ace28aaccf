"""Checks the pickles of a checkpoint before they are loaded: otherwise any user who can write into the
directory could run code in every rank.

DCP's index ``.metadata`` is a pickle, and so is each entry of the state that is not a tensor. The classes of
the index are known, so no others are accepted. Entries have what the script has put there.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from elasticjob.checkpoint.errors import CheckpointError

_DCP = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_OTHERS = {("collections", "OrderedDict"), ("torch", "Size"), ("torch.serialization", "_get_layout")}


class UntrustedError(CheckpointError):
    """A file of the checkpoint would run code when it is loaded."""


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member  # Python 3.11.0 to 3.11.3 pickle a member of an Enum as an attribute of it
        if "." not in name:
            if (module, name) in _OTHERS or (module == "torch" and _is_type_of_elements(name)):
                return super().find_class(module, name)
            if module in _DCP:
                found = super().find_class(module, name)
                known = isinstance(found, type) and (
                    dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)
                )
                if known and found.__module__ == module:
                    return found
        raise UntrustedError(f"it names {module}.{name}, which is no part of an index of DCP")


def _member(of: Any, name: Any) -> enum.Enum:
    """Stands for ``getattr`` in an index: it finds members of DCP's Enums, and nothing else."""
    if isinstance(of, enum.EnumMeta) and of.__module__ in _DCP and isinstance(name, str):
        members: Mapping[str, enum.Enum] = of.__members__
        if name in members:
            return members[name]
    raise UntrustedError(f"it names {name!r} of {of!r}, which is no part of an index of DCP")


def _is_type_of_elements(name: str) -> bool:
    return isinstance(getattr(torch, name, None), (torch.dtype, torch.layout, torch.memory_format))


def check_index(path: str, content: bytes) -> None:
    """Raises UntrustedError if this is not an index of DCP, before any of it has run."""
    try:
        _Index(io.BytesIO(content)).load()
    except Exception as error:
        raise UntrustedError(
            f"{path} was not loaded: {error}. Another user may have written it: remove it, and check the "
            "permissions of the directory."
        ) from error


class Planner(DefaultLoadPlanner):
    """Loads no entry that could run code if ``weights_only``, by torch's own list of harmless classes.

    ``trained`` names the entries that are a TrainState. What a checkpoint has no optimizer state of at all
    is a parameter that had no gradient before it was saved; its state is ``{}`` after loading. Any other key
    that a checkpoint does not have is an error.
    """

    def __init__(self, weights_only: bool, trained: Collection[str] = ()) -> None:
        super().__init__()
        self._weights_only = weights_only
        self._trained = trained

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict, metadata, is_coordinator)
        saved = metadata.state_dict_metadata if metadata is not None else {}
        of_parameters: dict[tuple[str, str], list[str]] = {}
        for key, (entry, *path) in self.mappings.items():
            if entry in self._trained and path[:2] == ["optimizer", "state"]:
                of_parameters.setdefault((str(entry), str(path[2])), []).append(key)
        for (entry, parameter), keys in of_parameters.items():
            if not any(key in saved for key in keys):
                self.original_state_dict[entry]["optimizer"]["state"][parameter] = {}
                for key in keys:
                    del self.state_dict[key], self.mappings[key]

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        if self._weights_only:
            key = read_item.dest_index.fqn
            try:
                torch.load(value, weights_only=True)
            except Exception as error:
                raise UntrustedError(
                    f"state[{key!r}] was not loaded, as weights_only is True: {error}. If your script has "
                    "saved a class of its own there, name it by torch.serialization.add_safe_globals."
                ) from error
            value.seek(0)
        super().load_bytes(read_item, value)
