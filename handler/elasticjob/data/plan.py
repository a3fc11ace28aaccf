"""Which positions of an epoch's order a step takes, and how ranks divide them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Position(NamedTuple):
    """How far training is. It counts samples, so that a run may resume with another batch size."""

    epoch: int
    taken: int
    """Samples of the epoch that have been taken."""


class Step(NamedTuple):
    """The global batch of a step: ``size`` samples of ``epoch``, from ``start`` on in its order."""

    epoch: int
    start: int
    size: int


@dataclass(frozen=True)
class Plan:
    """How epochs of ``samples`` samples are cut into global batches.

    The last one of an epoch is smaller where ``batch_size`` does not divide what is left. With ``drop_last``
    it is left out.
    """

    samples: int
    batch_size: int
    drop_last: bool = False

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def normal(self, position: Position) -> Position:
        """The same position; at the end of an epoch, that at the beginning of the next."""
        left = self.samples - position.taken
        if left < (self.batch_size if self.drop_last else 1):
            return Position(position.epoch + 1, 0)
        return position

    def step(self, position: Position) -> tuple[Step, Position]:
        """The step that follows, and the position after it."""
        epoch, taken = self.normal(position)
        size = min(self.batch_size, self.samples - taken)
        return Step(epoch, taken, size), self.normal(Position(epoch, taken + size))

    def steps(self, position: Position, epochs: int | None = None) -> Iterator[tuple[Step, Position]]:
        """All steps that follow, each with the position after it; until that number of epochs is complete,
        counted from the first."""
        while epochs is None or self.normal(position).epoch < epochs:
            step, position = self.step(position)
            yield step, position

    def sizes(self, position: Position) -> list[int]:
        """The sizes of the batches that are left of the epoch, each once."""
        whole, rest = divmod(self.samples - self.normal(position).taken, self.batch_size)
        return [self.batch_size] * (whole > 0) + [rest] * (rest > 0 and not self.drop_last)

    def after(self, steps: int) -> Position:
        """The position after this number of steps of this batch size, from the beginning."""
        epoch, done = divmod(steps, self.steps_per_epoch)
        return Position(epoch, done * self.batch_size)


def share(size: int, rank: int, world_size: int) -> range:
    """The part of a global batch of this size that is the rank's. Joined in the order of ranks the parts are
    the batch. They differ by one sample at most; with more ranks than samples, some are empty."""
    return range(size * rank // world_size, size * (rank + 1) // world_size)


def micro_batches(size: int, rank: int, world_size: int, largest: int) -> list[range]:
    """The rank's share in micro batches of up to ``largest`` samples.

    There are as many on each rank, so that all ranks take part in the same collectives if a wrapper has some
    for each micro batch. An empty one is among them if a rank has fewer samples than that.
    """
    mine = share(size, rank, world_size)
    largest_share = -(-size // world_size)
    number = -(-largest_share // largest)
    return [mine[len(mine) * i // number : len(mine) * (i + 1) // number] for i in range(number)]


def weight(samples: int, size: int, world_size: int) -> float:
    """What the mean loss of a micro batch of ``samples`` samples counts. The mean over ranks of the sum of
    these is the mean over the global batch of ``size``."""
    return samples * world_size / size
