"""Which samples a training step uses: the same ones at every world size, each once per epoch.

A step's global batch depends on the seed and on the step's number alone. Ranks only divide it among
themselves, so a job may restart with any other number of processes at any step and still neither
repeat nor skip a sample. The position of a training run is therefore one number, the steps done.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SampleIds = NDArray[np.int64]


@dataclass(frozen=True)
class GlobalBatches:
    """The batches of all epochs over ``samples`` samples, ``batch_size`` at a time.

    Steps count from 0. The last batch of an epoch is smaller where ``batch_size`` does not divide
    ``samples``: an epoch is every sample exactly once.
    """

    samples: int
    batch_size: int
    seed: int = 0

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, that step ``step`` belongs to."""
        return step // self.steps_per_epoch

    def order(self, epoch: int) -> SampleIds:
        """The order in which ``epoch`` visits the samples: a permutation of 0 .. samples - 1.

        Sorts raw 64-bit draws, which numpy promises to keep for ever; ``Generator.permutation`` may
        change between versions, and then a restart in a newer image would repeat samples.
        """
        draws = np.random.PCG64([self.seed, epoch]).random_raw(self.samples)
        return np.argsort(draws, kind="stable").astype(np.int64)

    def batch(self, step: int) -> SampleIds:
        """The sample ids of the global batch of ``step``, in order."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return self.order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]


def share(batch: SampleIds, rank: int, world_size: int) -> SampleIds:
    """The part of a global batch that ``rank`` trains on; parts differ by one sample at most.

    Joined in rank order the parts are the batch. A part is empty if there are more ranks than samples.
    """
    return batch[len(batch) * rank // world_size : len(batch) * (rank + 1) // world_size]


def fingerprint(batch: SampleIds) -> str:
    """12 hex digits that stand for these ids in this order."""
    return hashlib.sha256(batch.astype("<i8").tobytes()).hexdigest()[:12]
