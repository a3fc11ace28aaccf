"""The digits example uses every sample once per epoch, whatever happens to its world size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from examples.digits.sampler import GlobalBatches, fingerprint, share

batches = st.builds(
    GlobalBatches,
    samples=st.integers(1, 300),
    batch_size=st.integers(1, 80),
    seed=st.integers(0, 2**32),
)
world_sizes = st.integers(1, 100)


@given(batches, st.integers(0, 5))
def test_an_epoch_is_every_sample_once(batches: GlobalBatches, epoch: int) -> None:
    first = epoch * batches.steps_per_epoch
    seen = [batches.batch(first + index) for index in range(batches.steps_per_epoch)]
    assert sorted(np.concatenate(seen)) == list(range(batches.samples))
    assert all(len(batch) == batches.batch_size for batch in seen[:-1])
    assert all(batches.epoch_of(first + index) == epoch for index in range(batches.steps_per_epoch))


@given(batches, st.integers(0, 50), world_sizes)
def test_shares_joined_in_rank_order_are_the_batch(batches: GlobalBatches, step: int, world: int) -> None:
    batch = batches.batch(step)
    shares = [share(batch, rank, world) for rank in range(world)]
    assert np.array_equal(np.concatenate(shares), batch)
    sizes = [len(part) for part in shares]
    assert max(sizes) - min(sizes) <= 1


@given(batches, st.lists(st.tuples(world_sizes, st.integers(0, 20), st.integers(0, 5)), max_size=8))
def test_no_sequence_of_restarts_repeats_or_skips_a_sample(
    batches: GlobalBatches, rounds: list[tuple[int, int, int]]
) -> None:
    """Each round trains some steps at its own world size, then loses the last few of them."""
    trained: list[list[int]] = []
    for world, steps, lost in rounds:
        for step in range(len(trained), len(trained) + steps):
            batch = batches.batch(step)
            trained.append([int(i) for rank in range(world) for i in share(batch, rank, world)])
        del trained[max(0, len(trained) - lost) :]
    flat = [sample for batch in trained for sample in batch]
    for start in range(0, len(flat), batches.samples):
        epoch = flat[start : start + batches.samples]
        assert len(set(epoch)) == len(epoch)
    assert trained == [batches.batch(step).tolist() for step in range(len(trained))]


def test_the_order_depends_on_seed_and_epoch() -> None:
    orders = {
        tuple(GlobalBatches(50, 10, seed).order(epoch).tolist()) for seed in range(4) for epoch in range(4)
    }
    assert len(orders) == 16


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    """A restart may run in a newer image: these figures must never change."""
    batch = GlobalBatches(samples=1437, batch_size=64, seed=0).batch(30)
    assert batch[:4].tolist() == [1275, 1285, 950, 198]
    assert fingerprint(batch) == "b95f69f3ac29"


def test_the_fingerprint_depends_on_the_order() -> None:
    ids = np.arange(10, dtype=np.int64)
    assert fingerprint(ids) == fingerprint(ids.astype(np.int32))
    assert fingerprint(ids) != fingerprint(ids[::-1])
    assert len(fingerprint(ids)) == 12
