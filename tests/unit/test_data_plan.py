"""Global batches and shares: exact at every world size, with as many micro batches on each rank."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from elasticjob.data.plan import Plan, Position, Step, micro_batches, share, weight

plans = st.builds(Plan, samples=st.integers(80, 300), batch_size=st.integers(1, 80), drop_last=st.booleans())
sizes, world_sizes, largest = st.integers(1, 200), st.integers(1, 60), st.integers(1, 80)


@given(plans, st.integers(0, 3))
def test_steps_cover_an_epoch(plan: Plan, epoch: int) -> None:
    steps = [step for step, _ in plan.steps(Position(epoch, 0), epoch + 1)]
    assert len(steps) == plan.steps_per_epoch
    assert {step.epoch for step in steps} == {epoch}
    assert [step.start for step in steps] == [plan.batch_size * number for number in range(len(steps))]
    assert {step.size for step in steps[:-1]} <= {plan.batch_size}
    left = plan.samples - sum(step.size for step in steps)
    assert 0 <= left < plan.batch_size
    assert plan.drop_last or left == 0


@given(plans, st.integers(0, 40), st.integers(1, 10))
def test_a_position_leads_to_the_steps_that_would_have_followed(plan: Plan, done: int, more: int) -> None:
    all_steps = list(islice(plan.steps(Position(0, 0)), done + more))
    position = all_steps[done - 1][1] if done else Position(0, 0)
    assert list(islice(plan.steps(position), more)) == all_steps[done:]
    assert plan.after(done) == position


@given(plans, st.integers(1, 80), st.integers(1, 30))
def test_another_batch_size_goes_on_with_the_next_sample(plan: Plan, other: int, steps: int) -> None:
    *_, (_, position) = islice(plan.steps(Position(0, 0)), steps)
    step, _ = Plan(plan.samples, other).step(position)
    assert (step.epoch, step.start) == position


def test_the_end_of_an_epoch_is_the_beginning_of_the_next() -> None:
    assert Plan(10, 4).step(Position(0, 8)) == (Step(0, 8, 2), Position(1, 0))
    assert Plan(10, 4, drop_last=True).step(Position(0, 4)) == (Step(0, 4, 4), Position(1, 0))
    assert Plan(10, 4, drop_last=True).step(Position(0, 8)) == (Step(1, 0, 4), Position(1, 4))
    assert list(Plan(10, 4).steps(Position(2, 0), 2)) == []


@given(sizes, world_sizes)
def test_shares_are_the_batch(size: int, world_size: int) -> None:
    shares = [share(size, rank, world_size) for rank in range(world_size)]
    assert [index for part in shares for index in part] == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(sizes, world_sizes, largest)
def test_all_ranks_have_as_many_micro_batches(size: int, world_size: int, largest: int) -> None:
    parts = [micro_batches(size, rank, world_size, largest) for rank in range(world_size)]
    assert len({len(each) for each in parts}) == 1
    assert len(parts[0]) >= 1
    assert [index for each in parts for part in each for index in part] == list(range(size))
    assert max(len(part) for each in parts for part in each) <= largest
    assert len(parts[0]) == -(-max(sum(map(len, each)) for each in parts) // largest), "no more than needed"


@given(sizes, world_sizes, largest, st.data())
def test_the_mean_over_ranks_of_weighted_means_is_the_mean(
    size: int, world_size: int, largest: int, data: st.DataObject
) -> None:
    losses = data.draw(st.lists(st.integers(-100, 100), min_size=size, max_size=size))
    total = Fraction(0)
    for rank in range(world_size):
        for part in micro_batches(size, rank, world_size, largest):
            exact = Fraction(len(part) * world_size, size)
            assert weight(len(part), size, world_size) == float(exact)
            mean = Fraction(sum(losses[index] for index in part), max(len(part), 1))
            total += exact * mean
    assert total / world_size == Fraction(sum(losses), size)
