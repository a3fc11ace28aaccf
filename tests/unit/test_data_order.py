"""The order of samples: a permutation in each epoch, frozen for ever, and as good as a shuffle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.data import Blocks
from elasticjob.data.order import Shuffled
from elasticjob.data.permutation import permutation
from elasticjob.data.plan import share

seeds = st.integers(0, 2**64)


def never_read(block: int) -> Sequence[int]:
    raise AssertionError(f"block {block} was read")


lanes_of_blocks = (
    st.lists(st.integers(0, 12), min_size=1, max_size=12)
    .filter(any)
    .flatmap(lambda lengths: st.tuples(st.just(lengths), st.integers(1, sum(lengths))))
)


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    """A job may resume in a newer image: these numbers must never change."""
    assert Shuffled(10).ids(0, 0, range(10)) == [1, 0, 8, 4, 9, 7, 2, 5, 6, 3]
    assert Shuffled(10**6).ids(0, 0, range(5)) == [875603, 361657, 752257, 239042, 913973]
    assert Shuffled(10**12).ids(7, 3, range(10**12 - 3, 10**12)) == [60616122302, 668673689420, 799912075321]
    blocks = Blocks([5, 0, 7, 3], never_read, lanes=4)
    assert blocks.ids(1, 2, range(15)) == [13, 1, 7, 9, 12, 2, 10, 11, 14, 3, 6, 8, 4, 0, 5]
    assert blocks.name == "4 blocks in 4 lanes, lengths 8f5d471d206a"
    many = Blocks([1000] * 700, never_read, lanes=64)
    assert many.ids(1, 2, many.batch(640, 3)) == [467025, 146490, 235471]


@given(st.integers(1, 700), seeds, st.integers(0, 9))
def test_an_epoch_is_every_sample_once(samples: int, seed: int, epoch: int) -> None:
    assert sorted(Shuffled(samples).ids(seed, epoch, range(samples))) == list(range(samples))


@given(lanes_of_blocks, seeds, st.integers(0, 9))
def test_an_epoch_of_blocks_is_every_sample_once(shape: tuple[list[int], int], seed: int, epoch: int) -> None:
    lengths, lanes = shape
    blocks = Blocks(lengths, never_read, lanes=lanes)
    assert sorted(blocks.ids(seed, epoch, range(blocks.samples))) == list(range(sum(lengths)))


@given(lanes_of_blocks, st.data())
def test_a_batch_of_blocks_is_the_same_samples_by_lane(
    shape: tuple[list[int], int], data: st.DataObject
) -> None:
    lengths, lanes = shape
    blocks = Blocks(lengths, never_read, lanes=lanes)
    start = data.draw(st.integers(0, blocks.samples - 1))
    size = data.draw(st.integers(1, blocks.samples - start))
    batch = blocks.batch(start, size)
    assert sorted(batch) == list(range(start, start + size))
    assert [position % lanes for position in batch] == sorted(position % lanes for position in batch)


def test_a_lane_reads_each_of_its_blocks_once_and_holds_one() -> None:
    reads: list[int] = []

    def read(block: int) -> list[tuple[int, int]]:
        reads.append(block)
        return [(block, index) for index in range(10)]

    blocks = Blocks([10] * 12, read, lanes=3)
    loaded = []
    for start in range(0, 120, 6):
        loaded += blocks.load(blocks, 0, 0, blocks.batch(start, 6))
        assert len(blocks._held) <= 3
    assert sorted(reads) == list(range(12))
    assert sorted(loaded) == [(block, index) for block in range(12) for index in range(10)]
    expected = [blocks.ids(0, 0, blocks.batch(start, 6)) for start in range(0, 120, 6)]
    assert [block * 10 + index for block, index in loaded] == [each for batch in expected for each in batch]
    assert blocks[57] == (5, 7)


def test_a_rank_reads_only_the_blocks_of_its_lanes() -> None:
    blocks = Blocks([10] * 12, never_read, lanes=4)
    read_by = [
        {
            sample // 10
            for start in range(0, 120, 8)
            for sample in blocks.ids(0, 0, blocks.batch(start, 8)[rank * 4 : rank * 4 + 4])
        }
        for rank in range(2)
    ]
    assert [len(each) for each in read_by] == [6, 6]
    assert read_by[0].isdisjoint(read_by[1])


@pytest.mark.parametrize(("batch_size", "fewest", "most"), [(512, 8, 8), (100, 12, 21)])
def test_lanes_that_divide_the_batch_keep_a_rank_to_its_share(
    batch_size: int, fewest: int, most: int
) -> None:
    """The figures of docs/use/data.md."""
    blocks = Blocks([1000] * 128, never_read, lanes=64)
    lanes: list[set[int]] = [set() for _ in range(8)]
    for start in range(0, 200 * batch_size, batch_size):
        batch = blocks.batch(start, batch_size)
        for rank, its in enumerate(lanes):
            part = share(batch_size, rank, 8)
            its.update(position % 64 for position in batch[part.start : part.stop])
    assert (min(map(len, lanes)), max(map(len, lanes))) == (fewest, most)


def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="lanes is 16, expected 1 to 15"):
        Blocks([5, 7, 3], never_read, lanes=16)
    with pytest.raises(ValueError, match="2 blocks have 0 samples"):
        Blocks([0, 0], never_read, lanes=1)
    with pytest.raises(ValueError, match="0 blocks have 0 samples"):
        Blocks([], never_read, lanes=1)
    with pytest.raises(ValueError, match="the shortest has -1"):
        Blocks([5, -1], never_read, lanes=1)
    with pytest.raises(ValueError, match="block 0 has 2 samples, expected 3"):
        Blocks([3], lambda _: "ab", lanes=1)[0]
    with pytest.raises(IndexError, match="sample is 3, expected 0 to 2"):
        Blocks([3], never_read, lanes=1)[3]


def test_indexes_and_sizes_outside_are_refused() -> None:
    with pytest.raises(IndexError, match="index is 500, expected 0 to 499"):
        permutation(500)[500]
    with pytest.raises(IndexError, match="index is -1"):
        permutation(500)[-1]
    for samples in (0, 2**64 + 1):
        with pytest.raises(ValueError, match=f"samples is {samples}, expected 1 to {2**64}"):
            Shuffled(samples)
    assert Shuffled(2**64).ids(0, 0, [2**64 - 1])[0] < 2**64


def chi_squared(counts: Sequence[int]) -> float:
    """Of counts that are expected to be equal, in standard deviations from what is expected of it."""
    mean = sum(counts) / len(counts)
    degrees = len(counts) - 1
    return float((sum((count - mean) ** 2 for count in counts) / mean - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_permutations_of_few_are_equally_likely(size: int) -> None:
    number = 100 * len(list(permutations(range(size))))
    found = Counter(tuple(Shuffled(size).ids(seed, 0, range(size))) for seed in range(number))
    assert abs(chi_squared([found[each] for each in permutations(range(size))])) < 5


@pytest.mark.parametrize("size", [264, 1000, 1024, 30012])
def test_neighbours_in_the_order_are_independent(size: int) -> None:
    """Pairs of neighbours fall evenly into a grid, and their differences are those of random pairs."""
    cells: Counter[tuple[int, int]] = Counter()
    ascents = fixed = pairs = 0
    for epoch in range(-(-60_000 // size)):
        order = Shuffled(size).ids(5, epoch, range(size))
        fixed += sum(place == sample for place, sample in enumerate(order))
        for one, other in pairwise(order):
            cells[one * 12 // size, other * 12 // size] += 1
            ascents += one < other
            pairs += 1
    assert abs(chi_squared([cells[row, column] for row in range(12) for column in range(12)])) < 5
    assert abs(ascents - pairs / 2) < 5 * (pairs / 12) ** 0.5  # the variance of ascents of a permutation
    assert fixed < 5 * -(-60_000 // size)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [Shuffled(1000).ids(seed, epoch, range(1000)) for seed in range(8) for epoch in range(8)]
    same = [
        sum(one == other for one, other in zip(first, second, strict=True))
        for number, first in enumerate(orders)
        for second in orders[:number]
    ]
    assert max(same) < 12  # 1 is expected
    assert 0.8 < sum(same) / len(same) < 1.2
