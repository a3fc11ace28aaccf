"""In which order an epoch visits the samples: what ``GlobalBatches`` asks of an order, and the plain one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from elasticjob.data.permutation import LARGEST, permutation


class Order(Protocol):
    """The orders of all epochs; a position is a place in one of them."""

    @property
    def samples(self) -> int: ...

    @property
    def name(self) -> str:
        """Tells orders apart that differ for the same number of samples and seed. It is saved."""

    def batch(self, start: int, size: int) -> Sequence[int]:
        """The positions of a global batch, as ranks divide them."""

    def ids(self, seed: int, epoch: int, positions: Sequence[int]) -> list[int]:
        """The samples at these positions."""

    def load(self, dataset: Any, seed: int, epoch: int, positions: Sequence[int]) -> list[Any]:
        """The same, loaded from the data set."""


class Shuffled:
    """All samples are shuffled in each epoch."""

    name = "shuffled"

    def __init__(self, samples: int) -> None:
        if not 1 <= samples <= LARGEST:
            raise ValueError(f"samples is {samples}, expected 1 to {LARGEST}")
        self.samples = samples

    def batch(self, start: int, size: int) -> Sequence[int]:
        return range(start, start + size)

    def ids(self, seed: int, epoch: int, positions: Sequence[int]) -> list[int]:
        shuffled = permutation(self.samples, seed, epoch)
        return [shuffled[position] for position in positions]

    def load(self, dataset: Any, seed: int, epoch: int, positions: Sequence[int]) -> list[Any]:
        ids = self.ids(seed, epoch, positions)
        if all_at_once := getattr(dataset, "__getitems__", None):
            loaded: list[Any] = all_at_once(ids)
            return loaded
        return [dataset[sample] for sample in ids]
