"""The ranks of a training run, which take each step of a save and a resume together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from elasticjob.checkpoint.errors import CheckpointError, LostRankError

T = TypeVar("T")
Given = TypeVar("Given")


class Ranks:
    """All ranks of the default process group, or this process alone. They wait up to ``timeout`` seconds for
    each other.

    Collectives of a save run in a thread, so they need a ``group`` of their own; gloo, as the state is on the
    host then. Raises LostRankError, as all methods do, if a rank is lost.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.group: dist.ProcessGroup | None = None
        if dist.is_initialized():
            self.group = self._new_group()
        self.rank = dist.get_rank() if self.group else 0
        self.size = dist.get_world_size() if self.group else 1

    def agreed(self, decide_on_rank_0: Callable[[], T]) -> T:
        """Call this on rank 0, and return or raise the same on all ranks: a listing may differ between nodes
        and moments."""
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            outcome = _outcome(decide_on_rank_0)
        if self.group:
            self.together(partial(dist.broadcast_object_list, outcome, src=0, group=self.group))
        result: T = _result(outcome)
        return result

    def divided(self, given: Given, divide_on_rank_0: Callable[[list[Given]], Sequence[T]]) -> T:
        """Call this on rank 0 with what all ranks have given, and return its own part on each rank, or raise
        the same on all."""
        everything: list[Any] | None = [given] * self.size if self.rank == 0 else None
        if self.group:
            self.together(partial(dist.gather_object, given, everything, dst=0, group=self.group))
        parts: list[Any] | None = None
        if everything is not None:
            found, error = _outcome(partial(divide_on_rank_0, everything))
            parts = [[None if error else found[rank], error] for rank in range(self.size)]
        mine: list[Any] = [parts[0] if parts else None]
        if self.group:
            self.together(partial(dist.scatter_object_list, mine, parts, src=0, group=self.group))
        result: T = _result(mine[0])
        return result

    def everywhere(self, found: T) -> list[T]:
        """What each rank has found, by rank."""
        found_by_rank: list[Any] = [found] * self.size
        if self.group:
            self.together(partial(dist.all_gather_object, found_by_rank, found, group=self.group))
        return found_by_rank

    def all_say(self, *answers: bool) -> list[bool]:
        """For each of these answers, whether all ranks say so. One small collective."""
        word = torch.tensor([int(answer) for answer in answers], device="cpu")
        if self.group:
            self.together(partial(dist.all_reduce, word, op=dist.ReduceOp.MIN, group=self.group))
        return [bool(number) for number in word.tolist()]

    def together(self, collective: Callable[[], T]) -> T:
        """Call ``collective``. Raises LostRankError if the process group raises, whose errors look like any
        other of torch."""
        try:
            return collective()
        except (CheckpointError, CheckpointException):
            raise
        except RuntimeError as error:
            if self.group is None:
                raise
            raise self._lost(error) from error

    def _new_group(self) -> dist.ProcessGroup:
        """Make a group in a thread: if a rank has gone, gloo tries five times to connect, for ``timeout``
        each.

        Raises LostRankError.
        """
        made: Future[dist.ProcessGroup] = Future()

        def make() -> None:
            try:
                group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout))
                made.set_result(cast(dist.ProcessGroup, group))
            except BaseException as error:  # noqa: BLE001  # goes to the caller
                made.set_exception(error)

        threading.Thread(target=make, name="elasticjob-group", daemon=True).start()
        try:
            return made.result(self.timeout)
        except FutureTimeoutError:
            raise self._lost("no connection to another rank can be made") from None
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError | str) -> LostRankError:
        return LostRankError(
            f"{error} (rank {dist.get_rank()} was in a step that all ranks take together: if these are the "
            f"words of the process group, another rank was lost, took longer than {self.timeout:g} s, or "
            "cannot be reached)"
        )


def _outcome(decide: Callable[[], Any]) -> list[Any]:
    """What it returns, and what it raises, which goes to all ranks."""
    try:
        return [decide(), None]
    except Exception as error:  # noqa: BLE001
        return [None, error]


def _result(outcome: list[Any]) -> Any:
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
