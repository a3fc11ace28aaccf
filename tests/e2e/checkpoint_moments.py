"""Moments in the life of a checkpoint, at which a test does something to one rank."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from elasticjob.checkpoint import Checkpoints, memory, shards, storage
from elasticjob.checkpoint.memory_piece import Content
from elasticjob.checkpoint.ranks import Ranks
from elasticjob.memory.client import Agent

RESUME_MOMENTS = (
    "group",
    "group-half",
    "begin",
    "candidates",
    "verify",
    "forget",
    "load-index",
    "load-data",
)
SAVE_MOMENTS = ("plan", "copied", "room", "shard", "written", "failure")
RANK_0_MOMENTS = ("index", "marker", "marked")
"""What rank 0 alone does in a save."""
AGREEMENTS = {"begin": 1, "candidates": 2, "forget": 3, "room": 4, "failure": 5}
"""The agreements on the way to a checkpoint, in their order; the last is about a save that has failed."""

MEMORY_MOMENTS = ("memory-plan", "memory-lent", "memory-written", "memory-taken")
"""In a save to memory, on any rank."""

Action = Callable[[], None]


def at(moment: str, step: int, action: Action) -> None:
    """Do it when this process comes to that moment: of the save of ``step``, if it is one of a save."""
    save = f"-s{step:08d}"

    def of_this_save(writer: Any, *_: Any) -> bool:
        return save in str(writer.path)

    def of_this_file(_: Any, path: Any, what: Any) -> bool:
        return save in str(path) and what != "rb"

    def half_written(self: Any, path: Any, mode: str) -> bool:
        if of_this_file(self, path, mode):
            Path(str(path)).write_bytes(b"PK")
        return of_this_file(self, path, mode)

    if moment in AGREEMENTS:
        _before(Ranks, "agreed", action, number=AGREEMENTS[moment])
        if moment == "failure":
            _before(shards._Files, "create_stream", _disk_fails, of_this_file)
    elif moment == "memory-plan":
        _before(memory.MemoryTier, "save", action, lambda _, at, *__: at == step)
    elif moment == "memory-lent":  # the first step is the first call
        _before(Content, "write", action, number=step)
    elif moment == "memory-written":
        _before(Agent, "take", action, number=step)
    elif moment == "memory-taken":
        _after(Agent, "take", action, lambda _, name, *__: name.save.step == step)
    elif moment == "group":
        _before(dist, "new_group", action)
    elif moment == "group-half":
        made = distributed_c10d.ProcessGroupGloo
        distributed_c10d.ProcessGroupGloo = lambda store, *args, **options: made(  # type: ignore[misc,assignment]
            _Store(store, action), *args, **options
        )
    elif moment == "verify":
        _before(Checkpoints, "_damage", action)
    elif moment == "load-index":
        _before(shards.Reader, "read_metadata", action)
    elif moment == "load-data":
        _before(shards.Reader, "read_data", action)
    elif moment == "plan":
        _before(shards.Writer, "prepare_local_plan", action, of_this_save)
    elif moment == "copied":
        _before(shards.Writer, "write_data", action, of_this_save)
    elif moment == "shard":
        _before(shards._Files, "create_stream", action, half_written)
    elif moment == "written":
        _after(shards.Writer, "write_data", action, of_this_save)
    elif moment == "index":
        _before(shards.Writer, "finish", action, of_this_save)
    elif moment == "marker":  # after every check
        _before(storage.Folder, "put", action, of_this_file)
    elif moment == "marked":
        _after(storage.Folder, "put", action, of_this_file)
    else:
        raise ValueError(moment)


class _Store(dist.Store):
    """What a process group of gloo meets in: ``action`` comes when this rank has left its address there."""

    def __init__(self, store: dist.Store, action: Action) -> None:
        super().__init__()
        self._store, self._action = store, action

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self._action()
        return self._store.get(key)

    def add(self, key: str, number: int) -> int:
        return self._store.add(key, number)

    def wait(self, keys: list[str], *timeout: Any) -> None:
        self._store.wait(keys, *timeout)


def _disk_fails() -> None:
    raise OSError(errno.EIO, "the disk fails")


def _before(
    owner: Any, name: str, action: Action, where: Callable[..., bool] = lambda *_: True, number: int = 1
) -> None:
    """Do it before the call of this ``number``, of those for which ``where`` is true."""
    original, calls = getattr(owner, name), iter(range(1, 1_000_000))

    @wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        if where(*args) and next(calls) == number:
            action()
        return original(*args, **options)

    setattr(owner, name, call)


def _after(owner: Any, name: str, action: Action, where: Callable[..., bool]) -> None:
    """Do it after each call for which ``where`` is true."""
    original = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        if where(*args):
            action()
        return result

    setattr(owner, name, call)
