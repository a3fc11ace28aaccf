"""Lets rank 0 decide for all ranks which checkpoint to resume from: listings differ between nodes and
moments."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

KEY = "elasticjob/agreed/"
_calls = count()
_store: Any = None


def agreed(look: Callable[[], str | None]) -> str | None:
    """The result of ``look`` on rank 0, on all ranks, which call this together.

    With a process group, all raise what rank 0 raises. Before there is one, the ranks meet in torchrun's
    store.
    """
    if dist.is_initialized():
        return _by_group(look)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _by_store(look)
    return look()


def _by_group(look: Callable[[], str | None]) -> str | None:
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = look()
        except Exception as error:  # noqa: BLE001  # goes to all ranks
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    found: str | None = outcome[0]
    return found


def _by_store(look: Callable[[], str | None]) -> str | None:
    """If rank 0 raises, its process ends, and torchrun then ends the others, which wait."""
    global _store
    if _store is None:  # kept: a server of rank 0's must stay until the process group is made, which uses it
        _store, _, _ = next(rendezvous("env://"))
    key = f"{KEY}{next(_calls)}"
    if os.environ["RANK"] == "0":
        _store.set(key, json.dumps(look()))
    found: str | None = json.loads(_store.get(key))
    return found
