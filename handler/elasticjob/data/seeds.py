"""Seeds for random augmentation that depend on the sample and the epoch, and not on what loads it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

_loading: tuple[int, int] | None = None
"""The seed and the epoch of the samples that this process loads now. Not of a thread: a data set may load
with several."""


def sample_seed(index: int) -> int:
    """A seed of 32 bits for what is random about the sample with this index in this epoch. Call it in the
    data set, while ``GlobalBatches.load`` loads from it:

        def __getitem__(self, index):
            random = torch.Generator().manual_seed(sample_seed(index))

    It is the same at any world size and with any number of the loader's workers. Raises RuntimeError
    elsewhere.
    """
    if _loading is None:
        raise RuntimeError(
            "sample_seed is for data sets from which GlobalBatches.load loads: nothing else says which epoch "
            "it is. For evaluation, use a data set without random augmentation."
        )
    seed, epoch = _loading
    named = f"elasticjob.data/sample/{seed}/{epoch}/{int(index)}"
    return int.from_bytes(hashlib.shake_256(named.encode()).digest(4), "little")


@contextmanager
def loading(seed: int, epoch: int) -> Iterator[None]:
    """Samples of this epoch are loaded."""
    global _loading
    before, _loading = _loading, (seed, epoch)
    try:
        yield
    finally:
        _loading = before
