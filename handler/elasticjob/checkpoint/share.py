"""What one rank writes of a state: DCP divides the state first, then each rank copies its own share.

With DDP that is one W-th of what a copy of the whole state would be: training stops for a shorter time, and
each rank needs less memory. A plan is made once for all saves that are alike: no metadata is gathered then.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from elasticjob.checkpoint.errors import CheckpointError

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor

_AS_BEFORE = "as before"
"""``planner_data`` of a plan without items: it stands for this rank's plan of the save before."""


class PlannedOnce(DefaultSavePlanner):
    """Plans saves one after the other, and those that are alike once."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """A save has failed. The ranks may not agree on what was planned, so all plan the next save again."""
        self._local: SavePlan | None = None
        self._likeness: dict[str, Any] | None = None
        """That of the state for which ``_local`` was planned."""
        self._final: SavePlan | None = None
        self._everywhere: list[SavePlan] = []
        self._metadata: Metadata | None = None

    def let_go(self) -> None:
        """The state is copied, or was not needed: what its entries have made for it must not live on."""
        self.state_dict = {}

    def create_local_plan(self) -> SavePlan:
        found = likeness(self.state_dict)
        before = None if self._local is None else self._local.planner_data
        if found is not None and (found, self.mappings) == (self._likeness, before):
            return SavePlan([], planner_data=_AS_BEFORE)
        plan = super().create_local_plan()
        self._likeness = found
        if plan == self._local:
            return SavePlan([], planner_data=_AS_BEFORE)
        self._local = plan
        return plan

    def create_global_plan(
        self, all_plans: list[SavePlan], pods: Sequence[str] = ()
    ) -> tuple[list[SavePlan], Metadata]:
        """Called on rank 0. ``pods``: see ``divided_in_pods``; without, DCP divides all among all ranks."""
        if all(is_as_before(plan) for plan in all_plans):
            assert self._metadata is not None
            return all_plans, replace(self._metadata)
        before = self._everywhere or all_plans
        self._everywhere = [
            old if is_as_before(plan) else plan for plan, old in zip(all_plans, before, strict=True)
        ]
        given = [*self._everywhere]  # torch 2.4 changes this list
        plans, self._metadata = super().create_global_plan(given)
        if pods:
            plans = divided_in_pods(self._everywhere, pods)
        return plans, replace(self._metadata)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        if not is_as_before(new_plan):
            self._final = super().finish_plan(new_plan)
        assert self._final is not None
        return self._final


class SharePlanner(PlannedOnce):
    """The planner of all saves of one ``Checkpoints`` to its storage.

    DCP plans and writes in a thread of its own. In between it waits there until the caller's thread has
    copied the share (``copy``): the state may not change before, and on GPUs the copy has to be made in the
    stream in which training computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[MetadataIndex, torch.Tensor | io.BytesIO] = {}

    def begin(self) -> None:
        """There is another save. The one before has ended."""
        self._planned, self._copied = threading.Event(), threading.Event()

    def copy(self, save: Future[Any]) -> None:
        """Copy this rank's share as soon as it is known. Returns at once if ``save`` has failed before."""
        save.add_done_callback(lambda _: self._planned.set())
        try:
            self._planned.wait()
            if not save.done():
                assert self._final is not None
                for item in self._final.items:
                    self._copies[item.index] = _copy(super().resolve_data(item))
        finally:
            self._copied.set()

    def end(self) -> None:
        """The save has ended: let its copies go."""
        self._copies = {}
        self.let_go()

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        final = super().finish_plan(new_plan)
        self._planned.set()
        self._copied.wait()
        return final

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        copy = self._copies.pop(write_item.index, None)
        if copy is None:
            raise CheckpointError(f"{write_item.index.fqn} could not be copied")
        return copy


def likeness(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """What DCP's plan of a flat state depends on, by key. It takes much less time to find than a plan. None
    if there are tensors of which that is not known, such as FSDP1's."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, DTensor):
            mesh = (value.device_mesh, value.placements, value.shape)
            found[key] = (*mesh, *_properties(value.to_local()))
        elif type(value) in (torch.Tensor, nn.Parameter):
            found[key] = _properties(value)
        elif isinstance(value, torch.Tensor) or hasattr(value, "__create_write_items__"):
            return None
        else:
            found[key] = None  # bytes, which are made when they are written
    return found


def _properties(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout, tensor.requires_grad, tensor.is_pinned()


def divided_in_pods(plans: Sequence[SavePlan], pods: Sequence[str]) -> list[SavePlan]:
    """Divide what ranks have in common among those of one pod only: so each pod has all that its ranks need.
    As in DCP, the rank with the least gets an item. ``pods[rank]``: a word that is different for each pod."""
    having: dict[tuple[str, MetadataIndex], dict[int, WriteItem]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            having.setdefault((pods[rank], item.index), {})[rank] = item
    sizes, items = [0] * len(plans), [list[WriteItem]() for _ in plans]
    for given in having.values():
        rank = min(given, key=lambda rank: sizes[rank])
        sizes[rank] += given[rank].tensor_storage_size() or 1
        items[rank].append(given[rank])
    return [replace(plan, items=mine) for plan, mine in zip(plans, items, strict=True)]


def is_as_before(plan: SavePlan) -> bool:
    """Whether this stands for the rank's plan of the save before."""
    return isinstance(plan.planner_data, str) and plan.planner_data == _AS_BEFORE


def _copy(data: torch.Tensor | io.BytesIO) -> torch.Tensor | io.BytesIO:
    """A copy in the host's memory. Bytes have just been made."""
    return (
        torch.empty_like(data, device="cpu").copy_(data.detach()) if isinstance(data, torch.Tensor) else data
    )
