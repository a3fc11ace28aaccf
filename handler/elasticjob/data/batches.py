"""``GlobalBatches``: the global batches of a run whose world size may change between any two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from elasticjob.data.blocks import Blocks
from elasticjob.data.order import Order, Shuffled
from elasticjob.data.plan import Plan, Position, Step, micro_batches, share, weight
from elasticjob.data.seeds import loading

T = TypeVar("T")

DECIDED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
"""Options of DataLoader that are GlobalBatches' own."""


class GlobalBatch(Generic[T]):
    """The global batch of a step. Iterate over this rank's micro batches, each with the weight of its loss:

        for batch, weight in step:
            (loss_of(model(batch)) * weight).backward()

    ``loss_of`` is a mean over samples. The gradient, averaged over ranks as DDP and FSDP do it, is then that
    of the mean over the global batch. There are as many micro batches on each rank (``len``). The weight of
    one is 0 if this rank has no sample for it; it takes part with another rank's.

    Iterate over it once, before the next step is taken, which drops what is left of this one. Raises
    RuntimeError otherwise: there are no samples any more, and the position is after them.
    """

    def __init__(
        self,
        epoch: int,
        size: int,
        weights: Sequence[float],
        loaded: Iterator[T],
        ids: Callable[[], list[int]],
    ) -> None:
        self.epoch = epoch
        """From 0."""
        self.size = size
        """The number of samples, those of all ranks."""
        self._weights = weights
        self._loaded = loaded
        self._ids = ids
        self._taken = self._dropped = 0

    @property
    def ids(self) -> list[int]:
        """The samples of the global batch, those of all ranks, in order."""
        return self._ids()

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[tuple[T, float]]:
        again = self._taken == len(self)
        while self._taken < len(self):
            self._taken += 1
            yield next(self._loaded), self._weights[self._taken - 1]
        if self._dropped:
            raise RuntimeError(
                f"{self._dropped} of the {len(self)} micro batches of this step were dropped when the next "
                "step was taken: go through each step before you take the next. A list or a prefetcher "
                "around load() takes steps ahead; let DataLoader do so, by num_workers and prefetch_factor"
            )
        if again:
            raise RuntimeError(
                f"the {len(self)} micro batches of this step have been taken already, and come only once: "
                "keep them if you need them again, by kept = list(step)"
            )

    def _drop(self) -> None:
        """Take what the loop has left of this step, so that the next one begins with its own samples."""
        self._dropped = len(self) - self._taken
        while self._taken < len(self):
            self._taken += 1
            next(self._loaded)

    def accumulate(self, model: nn.Module) -> Iterator[tuple[T, float]]:
        """The same, but ranks exchange the gradients of ``model`` in the last micro batch only.

        That is quicker with DDP. FSDP2 then holds whole gradients instead of shards.
        """
        for loaded, its_weight in self:
            last = self._taken == len(self)
            with nullcontext() if last else _without_exchange(model):
                yield loaded, its_weight


class GlobalBatches:
    """The samples of a training run in global batches of ``batch_size``, the same ones in the same order at
    every world size. Put it into the state that is saved: it is the position of the run.

    ``samples`` is the number of samples of a data set with an index, ``len(dataset)``, or ``Blocks``. Each
    epoch has an order of its own, which depends on ``seed``. A rank's share of a batch is divided into micro
    batches of up to ``micro_batch_size`` samples (default: not divided). The last batch of an epoch is
    smaller, unless ``drop_last`` leaves it out. ``rank`` and ``world_size`` are those of the process group,
    unless you say which ranks have other data (of a device mesh: the data-parallel dimension's).

    Raises ValueError for numbers that do not fit.
    """

    def __init__(
        self,
        samples: int | Blocks,
        *,
        batch_size: int,
        micro_batch_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._order: Order = samples if isinstance(samples, Blocks) else Shuffled(samples)
        for name, value in (("batch_size", batch_size), ("micro_batch_size", micro_batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, expected 1 or more")
        if drop_last and self._order.samples < batch_size:
            raise ValueError(
                f"batch_size is {batch_size}, and there are {self._order.samples} samples: with drop_last no "
                "batch would be left"
            )
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank is {rank} and world_size is {world_size}: expected both or neither")
        if rank is not None and world_size is not None and not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}, expected 0 to {world_size - 1}, as world_size is {world_size}")
        self._plan = Plan(self._order.samples, batch_size, drop_last)
        self._micro_batch_size = micro_batch_size or batch_size
        self._seed = seed
        self._rank_of = None if rank is None or world_size is None else (rank, world_size)
        self._position = Position(0, 0)

    @property
    def steps_per_epoch(self) -> int:
        return self._plan.steps_per_epoch

    @property
    def epoch(self) -> int:
        """The epoch of the sample that comes next, from 0."""
        return self._position.epoch

    @property
    def taken(self) -> int:
        """How many samples of that epoch have been taken, with those of the step that the loop has now."""
        return self._position.taken

    def load(self, dataset: Any, *, epochs: int | None = None, **options: Any) -> Iterator[GlobalBatch[Any]]:
        """The steps that follow, loaded from ``dataset`` by a DataLoader with these ``options``, such as
        ``num_workers``. They end when this number of ``epochs`` is complete, counted from the beginning of
        the run.

        What the loader's workers have loaded ahead does not count: the position is after the step that the
        loop has. A micro batch is what DataLoader's ``collate_fn`` makes of the samples. Raises TypeError for
        a data set without an index and for options that are decided here, ValueError for a data set of
        another length.
        """
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"the data set, a {type(dataset).__name__}, has no index. If it can be read in blocks, use "
                "Blocks; otherwise save its loader's state with per_rank."
            )
        if len(dataset) != self._order.samples:
            raise ValueError(
                f"the data set has {len(dataset)} samples, and GlobalBatches was made for "
                f"{self._order.samples}"
            )
        if isinstance(self._order, Blocks) and dataset is not self._order:
            raise ValueError("GlobalBatches was made for Blocks, expected to load the same")
        if decided := [name for name in DECIDED if name in options]:
            raise TypeError(f"DataLoader gets no {', '.join(decided)} here: GlobalBatches decides it")
        if not options.get("in_order", True):
            raise TypeError("in_order is False, expected True: a step would get micro batches of another")

        def load(steps: Iterator[Step]) -> Iterator[Any]:
            samples = _Samples(dataset, self._order, self._seed)
            parts = ((step.epoch, part) for step in steps for part in self._parts(step))
            return iter(DataLoader(samples, batch_sampler=parts, **options))  # type: ignore[arg-type]

        return self._steps(load, epochs)

    def ids(self, *, epochs: int | None = None) -> Iterator[GlobalBatch[list[int]]]:
        """The same steps with the numbers of samples instead of samples, for data that is in memory."""

        def load(steps: Iterator[Step]) -> Iterator[list[int]]:
            return (self._ids(step, part) for step in steps for part in self._parts(step))

        return self._steps(load, epochs)

    def sampler(self) -> EpochSampler:
        """What a Trainer's own DataLoader takes as ``batch_sampler``: this rank's share of each batch that is
        left of the epoch. It moves no position; ``advance`` does. It raises ValueError if ranks would have
        shares of different sizes, as nothing weighs their losses then."""
        return EpochSampler(self)

    def seek(self, steps: int) -> None:
        """Set the position to that after this number of steps, if all had this ``batch_size``."""
        self._position = self._plan.after(steps)

    def advance(self) -> None:
        """Set the position to that after one more step: for a Trainer, whose loader takes batches from
        ``sampler()`` ahead of its loop."""
        self._position = self._plan.step(self._position)[1]

    def state_dict(self) -> dict[str, Any]:
        """The position: the same on all ranks, and at any world size."""
        return {**self._position._asdict(), **self._what()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError if it was saved with other samples or another seed: another order."""
        for name, ours in self._what().items():
            if state_dict[name] != ours:
                raise ValueError(
                    f"the data's {name} was {state_dict[name]!r} when this was saved, and is {ours!r} now: "
                    "the order of samples would be another one in the middle of an epoch"
                )
        self._position = self._plan.normal(Position(state_dict["epoch"], state_dict["taken"]))

    def _what(self) -> dict[str, Any]:
        return {"samples": self._order.samples, "seed": self._seed, "order": self._order.name}

    def _rank(self) -> tuple[int, int]:
        if self._rank_of is not None:
            return self._rank_of
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1

    def _ids(self, step: Step, positions: Sequence[int]) -> list[int]:
        return self._order.ids(self._seed, step.epoch, positions)

    def _shares(self) -> Iterator[list[int]]:
        """This rank's share of each batch that is left of the epoch."""
        rank, world_size = self._rank()
        for size in self._plan.sizes(self._position):
            if size % world_size:
                raise ValueError(
                    f"a batch has {size} samples, which {world_size} ranks cannot divide equally. "
                    "Choose a batch_size that every world size divides, with drop_last; or use load(), which "
                    "weighs unequal shares"
                )
        for step, _ in self._plan.steps(self._position, self._position.epoch + 1):
            batch = self._order.batch(step.start, step.size)
            part = share(step.size, rank, world_size)
            yield self._ids(step, batch[part.start : part.stop])

    def _parts(self, step: Step) -> list[Sequence[int]]:
        """The positions of this rank's micro batches; an empty one has the first sample of all."""
        batch = self._order.batch(step.start, step.size)
        parts = micro_batches(step.size, *self._rank(), self._micro_batch_size)
        return [batch[part.start : part.stop] or batch[:1] for part in parts]

    def _steps(
        self, load: Callable[[Iterator[Step]], Iterator[T]], epochs: int | None
    ) -> Iterator[GlobalBatch[T]]:
        start = self._position
        loaded = load(step for step, _ in self._plan.steps(start, epochs))
        rank, world_size = self._rank()
        for step, after in self._plan.steps(start, epochs):
            parts = micro_batches(step.size, rank, world_size, self._micro_batch_size)
            weights = [weight(len(part), step.size, world_size) for part in parts]
            ids = partial(self._ids, step, self._order.batch(step.start, step.size))
            batch = GlobalBatch(step.epoch, step.size, weights, loaded, ids)
            self._position = after
            yield batch
            if self._position is not after:  # also if another loop has come to the same one
                raise RuntimeError(
                    f"the position was {_told(after)} after this loop's last step, and was set to "
                    f"{_told(self._position)} since: another loop over these GlobalBatches has taken a step, "
                    "or they were loaded or moved. Begin a new loop then; to look at samples, make others"
                )
            batch._drop()


class EpochSampler:
    """The batch sampler that ``GlobalBatches.sampler`` makes."""

    def __init__(self, batches: GlobalBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._batches.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches._shares()


class _Samples:
    """What DataLoader takes for its data set: positions in, samples out. It lives for all epochs, in the
    loader's workers, too: so it tells the data set which epoch it is."""

    def __init__(self, dataset: Any, order: Order, seed: int) -> None:
        self.dataset = dataset
        self._order = order
        self._seed = seed
        self._epoch = -1

    def __getitems__(self, batch: tuple[int, Sequence[int]]) -> list[Any]:
        epoch, positions = batch
        if epoch != self._epoch and hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        self._epoch = epoch
        with loading(self._seed, epoch):
            return self._order.load(self.dataset, self._seed, epoch, positions)


def _told(position: Position) -> str:
    return f"sample {position.taken} of epoch {position.epoch}"


def _without_exchange(model: nn.Module) -> AbstractContextManager[Any]:
    """Backward passes in here leave gradients on this rank."""
    if no_sync := getattr(model, "no_sync", None):  # DDP, FSDP1
        context: AbstractContextManager[Any] = no_sync()
        return context
    if set_exchange := getattr(model, "set_requires_gradient_sync", None):  # FSDP2
        set_exchange(False)
        stack = ExitStack()
        stack.callback(set_exchange, True)
        return stack
    return nullcontext()
