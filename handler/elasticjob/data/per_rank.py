"""State that differs from rank to rank, such as that of a stream's loader, as one entry that is saved."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Loader(Protocol):
    """StatefulDataLoader of torchdata is one."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class PerRank:
    """The loader that ``per_rank`` returns."""

    def __init__(self, loader: Loader, otherwise: Callable[[int, int], None] | None) -> None:
        self._loader = loader
        self._otherwise = otherwise
        self._begun = False
        self._states = ""

    def __iter__(self) -> Iterator[Any]:
        self._begun = True
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks in one string, the same on all. All ranks call it together."""
        if self._begun:  # before, a StatefulDataLoader would start its workers for it
            self._states = _packed(_gathered(self._loader.state_dict()))
        return {"states": self._states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError if another number of ranks has saved it, unless ``otherwise`` is given."""
        self._begun, self._states = False, state_dict["states"]
        if not self._states:
            return
        states = _unpacked(self._states)
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if len(states) == ranks:
            self._loader.load_state_dict(states[rank])
        elif self._otherwise is not None:
            self._states = ""
            self._otherwise(len(states), ranks)
        else:
            raise ValueError(
                f"the states of the loaders were saved by {len(states)} rank{'s' * (len(states) != 1)}, "
                f"and now there are {ranks}: a state fits a rank of as many. Resume with as many as saved, "
                "or say what happens then: per_rank(loader, otherwise=...)"
            )


def per_rank(loader: Loader, *, otherwise: Callable[[int, int], None] | None = None) -> PerRank:
    """A loader whose state can be saved although it differs from rank to rank. Iterate over what it returns.

    Saving gathers the states of all ranks. They fit only as many ranks as have saved them: with another
    number, ``otherwise(ranks_then, ranks_now)`` is called, which may have the loader begin where the step
    says; without it, resuming raises ValueError. States are loaded as torch.load does it with
    ``weights_only``: for classes of your own, call torch.serialization.add_safe_globals.
    """
    return PerRank(loader, otherwise)


def _gathered(state: dict[str, Any]) -> list[Any]:
    if not dist.is_initialized():
        return [state]
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, state)
    return everywhere


def _packed(states: list[Any]) -> str:
    file = io.BytesIO()
    torch.save(states, file)
    packed = base64.b64encode(file.getvalue()).decode()
    _unpacked(packed)  # so that what cannot be loaded fails now, and not when a job resumes
    return packed


def _unpacked(packed: str) -> list[Any]:
    states: list[Any] = torch.load(io.BytesIO(base64.b64decode(packed)), weights_only=True)
    return states
