"""The state of a training run in the form that torch.distributed.checkpoint saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class TrainState(Stateful):
    """A model and its optimizer(s), as one entry of the state that is saved.

    Parameters have the same names, in the optimizer's state too, in a plain model and within DDP or FSDP2,
    and with any number of ranks: a run of one world size loads what a run of another has saved. A parameter
    that had no gradient yet has no optimizer state then either; the optimizer makes it at its first gradient.
    """

    def __init__(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizers = optimizers

    def state_dict(self) -> dict[str, Any]:
        model, optimizers = get_state_dict(self._model, self._optimizers)
        return {"model": model, "optimizer": optimizers}

    def unused(self) -> list[torch.optim.Optimizer]:
        """The optimizers that have made no state yet."""
        return [optimizer for optimizer in self._optimizers if not optimizer.state]

    def to_save(self) -> dict[str, Any]:
        """The same, but without a state that the optimizer has not made itself: DCP makes one to load into,
        by a step without gradients, which Adam would count."""
        unused = self.unused()
        for optimizer in unused:
            optimizer.state[next(one for group in optimizer.param_groups for one in group["params"])] = {}
        try:
            return self.state_dict()
        finally:
            for optimizer in unused:
                optimizer.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_state_dict(
            self._model,
            self._optimizers,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )
        for optimizer in self._optimizers:
            for parameter in [one for one, its_state in optimizer.state.items() if not its_state]:
                del optimizer.state[parameter]


def check(state: Mapping[str, Any]) -> None:
    """Raises TypeError for an entry that would be saved but not restored."""
    for key, value in state.items():
        if isinstance(value, torch.optim.Optimizer):
            raise TypeError(
                f"state[{key!r}] is an optimizer, which has no state before its first step, so that loading "
                "would restore nothing. Put TrainState(model, optimizer) in its place and the model's."
            )


def entries(state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries as DCP divides them. It would call ``state_dict`` itself, in the thread that writes, which
    has another current device."""
    return {key: _entry(value) for key, value in state.items()}


def _entry(value: Any) -> Any:
    if isinstance(value, TrainState):
        return value.to_save()
    return value.state_dict() if isinstance(value, Stateful) else value


def trained(state: Mapping[str, Any]) -> list[str]:
    """The keys of the entries that are a TrainState."""
    return [key for key, value in state.items() if isinstance(value, TrainState)]


def load(state: dict[str, Any], **options: Any) -> None:
    """``dcp.load``, which with torch 2.4 puts a plain dictionary in the place of each entry with a
    ``state_dict``: what is saved later would be that dictionary. Here such entries stay what they are. If it
    fails, optimizers that had no state have none: DCP has made one to load into, by a step that Adam counts.
    """
    loaded = dict(state)
    unused = [one for value in state.values() if isinstance(value, TrainState) for one in value.unused()]
    try:
        dcp.load(loaded, **options)
    except BaseException:
        for optimizer in unused:
            optimizer.state.clear()
        raise
    state.update({key: value for key, value in loaded.items() if not isinstance(state[key], Stateful)})
