"""Data that is read in blocks, such as files of samples: shuffled so that each block is read by few."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from elasticjob.data.permutation import permutation


class Blocks:
    """A data set of blocks of samples, for ``GlobalBatches``: ``lengths`` says how many samples each block
    has, and ``read(block)`` returns them as a sequence.

    An epoch shuffles the blocks, and the samples within each. It reads ``lanes`` blocks at a time, all ranks
    together: the shuffled blocks are cut into this number of lanes of equal length, and each global batch
    takes samples of all lanes in turn. A rank has its share of the lanes, and holds one block of each. So
    choose at least as many lanes as there will be ranks with their loader's workers, and a number that
    divides the batch size: otherwise a rank's lanes differ from batch to batch, and it holds a block of each
    that it has come to, not to read blocks again. More lanes mix better and hold more memory.
    """

    def __init__(self, lengths: Sequence[int], read: Callable[[int], Sequence[Any]], *, lanes: int) -> None:
        self._lengths = list(lengths)
        self._firsts = [0, *accumulate(self._lengths)]
        self.samples = self._firsts[-1]
        self._read = read
        self._lanes = lanes
        self._held: dict[int, tuple[int, Sequence[Any]]] = {}
        """The block that each lane has come to, and its samples."""
        self._shuffled: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        if self.samples < 1 or min(self._lengths) < 0:
            raise ValueError(
                f"{len(self._lengths)} blocks have {self.samples} samples, and the shortest has "
                f"{min(self._lengths, default=0)}: expected at least one sample, and no length below 0"
            )
        if not 1 <= lanes <= self.samples:
            raise ValueError(f"lanes is {lanes}, expected 1 to {self.samples}, the number of samples")
        hashed = hashlib.sha256(repr(self._lengths).encode()).hexdigest()[:12]
        self.name = f"{len(self._lengths)} blocks in {lanes} lanes, lengths {hashed}"

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, sample: int) -> Any:
        """The sample with this number, counted through all blocks."""
        if not 0 <= sample < self.samples:
            raise IndexError(f"sample is {sample}, expected 0 to {self.samples - 1}")
        block = bisect_right(self._firsts, sample) - 1
        return self._block(-1, block)[sample - self._firsts[block]]

    def batch(self, start: int, size: int) -> Sequence[int]:
        """By lanes, so that a rank has as few of them as it can."""
        return sorted(range(start, start + size), key=lambda position: position % self._lanes)

    def ids(self, seed: int, epoch: int, positions: Sequence[int]) -> list[int]:
        places = (self._place(seed, epoch, position) for position in positions)
        return [self._firsts[block] + index for block, index in places]

    def load(self, dataset: Any, seed: int, epoch: int, positions: Sequence[int]) -> list[Any]:
        del dataset  # itself
        loaded = []
        for position in positions:
            block, index = self._place(seed, epoch, position)
            loaded.append(self._block(position % self._lanes, block)[index])
        return loaded

    def _place(self, seed: int, epoch: int, position: int) -> tuple[int, int]:
        """The block, and the index in it, of a position."""
        blocks, firsts = self._order(seed, epoch)
        offset, lane = divmod(position, self._lanes)
        shortest, longer = divmod(self.samples, self._lanes)  # the first lanes have a sample more
        place = lane * shortest + min(lane, longer) + offset
        number = bisect_right(firsts, place) - 1
        block = blocks[number]
        return block, permutation(self._lengths[block], seed, epoch, block)[place - firsts[number]]

    def _block(self, lane: int, block: int) -> Sequence[Any]:
        held = self._held.get(lane)
        if held is None or held[0] != block:
            self._held.pop(lane, None)  # not two blocks of a lane in memory
            samples = self._read(block)
            if len(samples) != self._lengths[block]:
                raise ValueError(
                    f"block {block} has {len(samples)} samples, expected {self._lengths[block]}, its length"
                )
            held = self._held[lane] = block, samples
        return held[1]

    def _order(self, seed: int, epoch: int) -> tuple[list[int], list[int]]:
        """The blocks in the order of this epoch, and the number of samples before each."""
        known = self._shuffled.get((seed, epoch))
        if known is None:
            shuffled = permutation(len(self._lengths), seed, epoch)
            blocks = [shuffled[number] for number in range(len(self._lengths))]
            known = blocks, [0, *accumulate(self._lengths[block] for block in blocks)]
            if len(self._shuffled) > 1:  # this epoch and, where loaders are ahead, the next
                self._shuffled.clear()
            self._shuffled[seed, epoch] = known
        return known
