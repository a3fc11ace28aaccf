"""``GlobalBatches``, with the ranks of a round simulated in this process."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from elasticjob.checkpoint import Checkpoints
from elasticjob.data import Blocks, GlobalBatches, sample_seed

SAMPLES = 103
INPUTS = torch.randn(SAMPLES, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS.sum(dim=1).sin()


class Numbered(Dataset[int]):
    """A sample is its number."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Augmented(Numbered):
    def __getitem__(self, index: int) -> int:
        return sample_seed(index)


class AllAtOnce(Numbered):
    """As data sets of Hugging Face are."""

    def __getitem__(self, index: int) -> int:
        raise AssertionError(f"sample {index} was loaded alone")

    def __getitems__(self, indexes: list[int]) -> list[int]:
        return [1000 + index for index in indexes]


def plain(samples: list[Any]) -> list[Any]:
    return samples


def batches_of(ranks: int, **options: Any) -> list[GlobalBatches]:
    options = {"batch_size": 16, "micro_batch_size": 3, **options}
    samples = options.pop("samples", SAMPLES)
    return [GlobalBatches(samples, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def trained(batches: GlobalBatches, steps: int, dataset: Any = None, **options: Any) -> list[list[int]]:
    """The samples of this rank that count, step by step."""
    loaded = batches.load(dataset or Numbered(), collate_fn=plain, **options)
    return [[sample for part, weight in step if weight for sample in part] for step in islice(loaded, steps)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16, 20])
def test_each_sample_once_per_epoch_and_the_same_batches_on_any_number_of_ranks(ranks: int) -> None:
    alone = [sorted(each) for each in trained(batches_of(1)[0], 14)]
    shares = [trained(batches, 14) for batches in batches_of(ranks)]
    together = [[sample for part in step for sample in part] for step in zip(*shares, strict=True)]
    assert [sorted(each) for each in together] == alone
    for epoch in (alone[:7], alone[7:]):
        assert sorted(sample for step in epoch for sample in step) == list(range(SAMPLES))
    assert alone[:7] != alone[7:]


def test_workers_that_load_ahead_change_nothing() -> None:
    """The position is what the loop has had: after three steps, resume with two ranks and other workers."""
    expected = trained(batches_of(1)[0], 10)
    first = batches_of(1)[0]
    got = trained(first, 3, num_workers=2, prefetch_factor=4)
    assert (first.epoch, first.taken) == (0, 48)
    shares = []
    for batches in batches_of(2):
        batches.load_state_dict(first.state_dict())
        shares.append(trained(batches, 7, num_workers=1))
    got += [one + other for one, other in zip(*shares, strict=True)]
    assert got == expected


def test_the_position_is_after_the_step_in_hand() -> None:
    batches = batches_of(1)[0]
    steps = batches.load(Numbered(), collate_fn=plain)
    assert (batches.epoch, batches.taken) == (0, 0)
    for expected in [(0, 16), (0, 32), (0, 48), (0, 64), (0, 80), (0, 96), (1, 0), (1, 16)]:
        next(steps)
        assert (batches.epoch, batches.taken) == expected


def test_a_loader_begins_at_the_position_of_its_first_step() -> None:
    batches = batches_of(1)[0]
    steps = batches.load(Numbered(), collate_fn=plain)
    batches.seek(6)
    assert next(steps).size == 7
    assert (batches.epoch, batches.taken) == (1, 0)


def test_a_loop_ends_with_an_error_if_something_else_has_moved_the_position() -> None:
    batches = batches_of(1)[0]
    steps = batches.ids()
    next(steps)
    saved = batches.state_dict()
    next(steps)
    next(batches.ids())  # a look at one batch
    with pytest.raises(RuntimeError, match=r"was sample 32 of epoch 0 .* was set to sample 48 of epoch 0"):
        next(steps)

    steps = batches.ids()
    next(steps)
    batches.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="was set to sample 16 of epoch 0 since"):
        next(steps)
    assert batches.state_dict() == saved


def test_a_loop_ends_with_an_error_even_if_another_one_has_come_to_the_same_position() -> None:
    batches = batches_of(1)[0]
    steps = batches.ids()
    next(steps)
    batches.seek(0)
    next(batches.ids())
    assert batches.taken == 16
    with pytest.raises(RuntimeError, match="another loop over these GlobalBatches has taken a step"):
        next(steps)

    steps = batches.ids()
    next(steps)
    batches.load_state_dict(batches.state_dict())
    with pytest.raises(RuntimeError, match="or they were loaded or moved"):
        next(steps)


class Curriculum(Numbered):
    """A sample is the epoch for which it is asked."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        del index
        return self.epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_the_data_set_knows_the_epoch_in_each_worker(workers: int) -> None:
    steps = batches_of(1)[0].load(Curriculum(), epochs=3, num_workers=workers, collate_fn=plain)
    assert all({*samples} == {step.epoch} for step in steps for samples, _ in step)


def test_epochs_end_the_loop() -> None:
    batches = batches_of(1)[0]
    batches.seek(9)
    assert [step.epoch for step in batches.ids(epochs=3)] == [1] * 5 + [2] * 7
    assert (batches.epoch, batches.taken) == (3, 0)
    assert list(batches.ids(epochs=3)) == []


def test_what_the_loop_leaves_of_a_step_is_not_in_the_next() -> None:
    expected = trained(batches_of(1)[0], 3)
    steps = batches_of(1)[0].load(Numbered(), collate_fn=plain)
    (part, _), *_ = next(steps)
    assert part == expected[0][:2]
    begun = iter(next(steps))
    next(begun)
    third = next(steps)
    assert [sample for part, _ in third for sample in part] == expected[2]
    with pytest.raises(RuntimeError, match="5 of the 6 micro batches of this step were dropped"):
        next(begun)


def ahead(steps: Iterator[Any]) -> Iterator[Any]:
    """As a prefetcher does: one step before the loop has asked for it."""
    held = next(steps)
    for step in steps:
        yield held
        held = step


@pytest.mark.parametrize(
    "wrapped", [ahead, lambda steps: iter(list(islice(steps, 3)))], ids=["ahead", "list"]
)
@pytest.mark.parametrize("accumulates", [False, True])
def test_a_step_that_is_taken_too_early_is_not_empty_but_an_error(wrapped: Any, accumulates: bool) -> None:
    step = next(wrapped(batches_of(1)[0].load(Numbered(), collate_fn=plain)))
    with pytest.raises(RuntimeError, match=r"6 of the 6 micro batches .* prefetcher around load\(\)"):
        next(iter(step.accumulate(nn.Linear(1, 1)) if accumulates else step))


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_step_comes_only_once(accumulates: bool) -> None:
    steps = batches_of(1)[0].load(Numbered(), collate_fn=plain)
    step = next(steps)
    assert len(list(step)) == 6
    again = step.accumulate(nn.Linear(1, 1)) if accumulates else step
    with pytest.raises(
        RuntimeError, match=r"the 6 micro batches of this step have been taken already.*list\(step\)"
    ):
        list(again)
    assert len(list(next(steps))) == 6


def test_steps_say_what_they_are() -> None:
    one, other = batches_of(2)
    for step, same in zip(one.ids(epochs=1), other.ids(epochs=1), strict=True):
        assert step.ids == same.ids
        assert len(step.ids) == step.size == same.size
        largest_share = (step.size + 1) // 2
        assert len(step) == len(same) == (largest_share + 2) // 3
        parts = [sample for batch in (step, same) for part, weight in batch if weight for sample in part]
        assert parts == step.ids
    assert one.steps_per_epoch == 7
    assert batches_of(1, drop_last=True)[0].steps_per_epoch == 6


def test_an_empty_share_takes_part_with_weight_0() -> None:
    batches = batches_of(20)
    steps = [next(each.load(Numbered(), collate_fn=plain)) for each in batches]
    parts = [list(step) for step in steps]
    assert {len(each) for each in parts} == {1}
    assert sorted({weight for each in parts for _, weight in each}) == [0, 20 / 16]
    idle = [part for each in parts for part, weight in each if weight == 0]
    assert idle == [steps[0].ids[:1]] * 4


def test_data_sets_that_load_many_at_once_do() -> None:
    expected = [[1000 + sample for sample in step] for step in trained(batches_of(1)[0], 8)]
    assert trained(batches_of(1)[0], 8, AllAtOnce()) == expected


def test_augmentation_depends_on_the_sample_and_the_epoch_alone() -> None:
    alone = trained(batches_of(1)[0], 14, Augmented())
    shares = [trained(each, 14, Augmented(), num_workers=rank) for rank, each in enumerate(batches_of(2))]
    assert [one + other for one, other in zip(*shares, strict=True)] == alone
    seeds = [seed for step in alone for seed in step]
    assert len(set(seeds)) == 2 * SAMPLES
    assert trained(batches_of(1, seed=1)[0], 14, Augmented()) != alone
    assert next(iter(next(batches_of(1)[0].load(Augmented(), collate_fn=plain))))[0][0] == 198840013, (
        "a number that must never change"
    )
    with pytest.raises(RuntimeError, match=r"for data sets from which GlobalBatches\.load loads"):
        sample_seed(0)


def test_a_stream_of_blocks_has_the_same() -> None:
    lengths = [10, 0, 33, 7, 20, 33]

    def blocks() -> Blocks:
        firsts = [sum(lengths[:block]) for block in range(6)]
        return Blocks(lengths, lambda block: range(firsts[block], firsts[block] + lengths[block]), lanes=4)

    def played(ranks: int, state: dict[str, Any] | None, steps: int, workers: int) -> list[list[int]]:
        shares = []
        for rank in range(ranks):
            stream = blocks()
            batches = GlobalBatches(stream, batch_size=16, micro_batch_size=3, rank=rank, world_size=ranks)
            if state:
                batches.load_state_dict(state)
            shares.append(trained(batches, steps, stream, num_workers=workers))
            states.append(batches.state_dict())
        return [[sample for part in step for sample in part] for step in zip(*shares, strict=True)]

    states: list[dict[str, Any]] = []
    steady = played(1, None, 14, 0)
    changing = played(3, None, 5, 0)
    changing += played(2, states[-1], 9, 1)
    assert changing == steady
    assert sorted(sample for step in steady[:7] for sample in step) == list(range(SAMPLES))
    with pytest.raises(ValueError, match="made for Blocks, expected to load the same"):
        GlobalBatches(blocks(), batch_size=16).load(blocks())
    with pytest.raises(ValueError, match=r"order was 'shuffled' .* '6 blocks in 4 lanes, lengths \w+' now"):
        GlobalBatches(blocks(), batch_size=16).load_state_dict(batches_of(1)[0].state_dict())


def test_the_state_is_one_plain_entry_at_any_number_of_ranks(tmp_path: Path) -> None:
    saved, loaded = batches_of(3)[1], batches_of(2)[0]
    trained(saved, 9)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(9, {"data": saved})
    with Checkpoints(tmp_path / "checkpoints", weights_only=True) as checkpoints:
        assert checkpoints.resume({"data": loaded}) == 9
    assert (loaded.epoch, loaded.taken) == (1, 32)
    assert {type(value) for value in saved.state_dict().values()} == {int, str}


def test_another_batch_size_goes_on_with_the_next_sample() -> None:
    small, large = batches_of(1)[0], batches_of(1, batch_size=40)[0]
    first = trained(small, 2)
    large.load_state_dict(small.state_dict())
    rest = trained(large, 2)
    assert [len(step) for step in first + rest] == [16, 16, 40, 31]
    assert sorted(sample for step in first + rest for sample in step) == list(range(SAMPLES))


def test_the_sampler_of_a_trainer() -> None:
    options: dict[str, Any] = {"batch_size": 12, "drop_last": True}
    expected = [sorted(step) for step in trained(batches_of(1, **options)[0], 16)]
    for ranks in (1, 2, 3, 4):
        batches = batches_of(ranks, **options)
        for first, last in ((0, 8), (3, 8), (8, 16), (13, 16)):
            for each in batches:
                each.seek(first)
            samplers = [each.sampler() for each in batches]
            assert [len(sampler) for sampler in samplers] == [8] * ranks
            steps = [list(chain(*parts)) for parts in zip(*samplers, strict=True)]
            assert [sorted(step) for step in steps] == expected[first:last]
            assert {len(part) for part in samplers[0]} == {12 // ranks}
    with pytest.raises(ValueError, match="a batch has 12 samples, which 5 ranks cannot divide equally"):
        next(iter(batches_of(5, **options)[0].sampler()))
    with pytest.raises(ValueError, match="a batch has 7 samples, which 2 ranks cannot divide equally"):
        next(iter(batches_of(2)[0].sampler()))  # before an epoch is trained in vain


def test_the_position_of_a_trainer_goes_on_with_another_batch_size() -> None:
    small, large = batches_of(1)[0], batches_of(1, batch_size=40)[0]
    for _ in range(9):
        small.advance()
    assert (small.epoch, small.taken) == (1, 32)
    large.load_state_dict(small.state_dict())
    assert [len(share) for share in large.sampler()] == [40, 31]
    large.advance()
    large.advance()
    assert (large.epoch, large.taken) == (2, 0)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_numbers_that_do_not_fit_are_named() -> None:
    def refused(words: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=words):
            GlobalBatches(options.pop("samples", 10), **{"batch_size": 4, **options})

    refused("samples is 0, expected 1 to", samples=0)
    refused("batch_size is 0, expected 1 or more", batch_size=0)
    refused("micro_batch_size is -1, expected 1 or more", micro_batch_size=-1)
    refused("micro_batch_size is 0, expected 1 or more", micro_batch_size=0)
    refused("batch_size is 16, and there are 10 samples: with drop_last", batch_size=16, drop_last=True)
    refused("rank is 3 and world_size is None: expected both or neither", rank=3)
    refused("rank is 3, expected 0 to 2, as world_size is 3", rank=3, world_size=3)

    batches = GlobalBatches(10, batch_size=4)
    with pytest.raises(ValueError, match="has 12 samples, and GlobalBatches was made for 10"):
        batches.load(Numbered(12))
    with pytest.raises(TypeError, match=r"a Stream, has no index\. If it can be read in blocks, use Blocks"):
        batches.load(Stream())
    with pytest.raises(TypeError, match="DataLoader gets no batch_size, shuffle here"):
        batches.load(Numbered(10), batch_size=2, shuffle=True)
    with pytest.raises(TypeError, match="in_order is False, expected True"):
        batches.load(Numbered(10), in_order=False)
    for other, words in (
        (GlobalBatches(12, batch_size=4), "samples was 12 when this was saved, and is 10 now"),
        (GlobalBatches(10, batch_size=4, seed=5), "seed was 5 when this was saved, and is 0 now"),
    ):
        with pytest.raises(ValueError, match=words):
            batches.load_state_dict(other.state_dict())


class Exchanging(nn.Module):
    """Says whether ranks would exchange gradients, as DDP (``no_sync``) does."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.exchanges = False
        try:
            yield
        finally:
            self.exchanges = True


class Sharded(nn.Module):
    """The same, as FSDP2."""

    exchanges = True

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        self.exchanges = requires_gradient_sync


@pytest.mark.parametrize("model", [Exchanging(), Sharded()], ids=["ddp", "fsdp2"])
def test_gradients_are_exchanged_in_the_last_micro_batch_only(model: Any) -> None:
    for step in batches_of(3)[0].ids(epochs=1):
        exchanged = [model.exchanges for _ in step.accumulate(model)]
        assert exchanged == [False] * (len(step) - 1) + [True]
    step = next(batches_of(3)[0].ids())
    for _ in step.accumulate(model):
        break
    assert model.exchanges, "it is left as it was"
    assert [weight for _, weight in step.accumulate(nn.Linear(1, 1))] == [3 * 3 / 16]


@dataclass
class History:
    """What counts of a training: the samples and the loss of each step."""

    steps: list[Counter[int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


class Training:
    """A training whose ranks are simulated: the mean of their gradients is what DDP and FSDP make of them."""

    def __init__(self, history: History, saved: dict[str, Any] | None, ranks: int) -> None:
        self.history = history
        self.weights = nn.Parameter(torch.zeros(5, dtype=torch.float64))
        self.optimizer = torch.optim.AdamW([self.weights], lr=0.05)
        self.ranks = batches_of(ranks)
        if saved:
            self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
            self.weights.data.copy_(saved["weights"])
            for batches in self.ranks:
                batches.load_state_dict(saved["data"])
        del history.steps[saved["step"] if saved else 0 :]
        del history.losses[saved["step"] if saved else 0 :]
        self.loaded = [batches.load(Numbered()) for batches in self.ranks]

    def step(self) -> None:
        samples: Counter[int] = Counter()
        total = 0.0
        self.optimizer.zero_grad()
        for loaded in self.loaded:
            for ids, weight in next(loaded):
                samples.update(ids.tolist() if weight else ())
                loss = mean_loss(self.weights, ids) * (weight / len(self.ranks))
                torch.autograd.backward(loss)
                total += loss.item()
        self.optimizer.step()
        self.history.steps.append(samples)
        self.history.losses.append(total)

    def saved(self, rank: int) -> dict[str, Any]:
        """What a checkpoint of this rank has."""
        state = {"data": self.ranks[rank].state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy({**state, "weights": self.weights.data, "step": len(self.history.steps)})


def mean_loss(weights: Tensor, ids: Tensor) -> Tensor:
    return ((INPUTS[ids] @ weights - TARGETS[ids]) ** 2).mean()


STEPS = 21
"""Three epochs."""


@pytest.fixture(scope="module")
def undisturbed() -> History:
    history = History()
    training = Training(history, None, 1)
    for _ in range(STEPS):
        training.step()
    return history


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 100))]
)
def test_kills_and_changes_of_size_change_nothing_that_counts(seed: int, undisturbed: History) -> None:
    """Rounds of 1 to 6 ranks, or of more ranks than samples of a batch, each killed after some steps."""
    rng = random.Random(seed)
    history, saved, rounds = History(), None, 0
    every = rng.randint(1, 4)
    while len(history.steps) < STEPS or rounds < 5:
        training = Training(history, saved, rng.choice([1, 2, 3, 4, 5, 6, 18]))
        rounds += 1
        for _ in range(min(rng.randint(1, 9), STEPS - len(history.steps))):
            training.step()
            if len(history.steps) % every == 0 and len(history.steps) < STEPS:
                saved = training.saved(rng.randrange(len(training.ranks)))
    assert history.steps == undisturbed.steps
    for first in range(0, STEPS, 7):
        assert sum(history.steps[first : first + 7], Counter()) == Counter(range(SAMPLES))
    assert history.losses == pytest.approx(undisturbed.losses, rel=0, abs=1e-12)
