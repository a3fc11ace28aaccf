"""Rounds that may only have some sizes: in the round kernel, in the spec, in what a queue is asked for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.rounds.candidates import Defer, Expected, FormRound, decide
from elasticjob.rounds.ranks import Candidate
from elasticjob.rounds.sizes import ANY, Sizes
from elasticjob_operator.observe.spec import read_spec
from elasticjob_operator.plan.queue.workloads import chunks, pieces
from elasticjob_operator.plan.state.model import JobSpec
from elasticjob_operator.plan.state.sized import sized

POWERS = Sizes((2, 4, 8))
GROUPS = Sizes(multiple=4)

listed = st.sets(st.integers(1, 40), min_size=1, max_size=6).map(lambda found: Sizes(tuple(sorted(found))))
sizes = st.one_of(st.just(ANY), listed, st.integers(1, 9).map(lambda number: Sizes(multiple=number)))


def joined(count: int) -> list[Candidate]:
    return [Candidate(f"id-{slot}", f"p-{slot}", slot) for slot in range(count)]


def decided(count: int, late: int = 0, sizes: Sizes = POWERS) -> int | str:
    """The size of the round that begins, or for what it waits: of 8 wanted, at least 2."""
    expected = [Expected(f"late-{one}", 10.0, "starting") for one in range(late)]
    decision = decide(joined(count), expected, 2, 8, sizes)
    return len(decision.members) if isinstance(decision, FormRound) else decision.sentence


@given(sizes, st.integers(0, 60), st.integers(0, 60))
def test_floor_and_ceil_are_the_nearest_sizes(sizes: Sizes, low: int, high: int) -> None:
    low, high = sorted((low, high))
    between = sizes.between(low, high)
    assert between == sorted(set(between))
    assert all(sizes.floor(size) == sizes.ceil(size) == size for size in between)
    assert sizes.floor(high) == (between[-1] if between else sizes.floor(low))
    assert between == [n for n in range(low + 1, high + 1) if sizes.floor(n) == n]


@given(sizes, st.integers(0, 50), st.integers(1, 40), st.integers(0, 9), st.integers(0, 6))
def test_a_round_has_the_largest_size_for_which_pods_have_joined(
    sizes: Sizes, count: int, asked: int, spares: int, late: int
) -> None:
    spec = sized(JobSpec(replicas=asked, min_replicas=1, spares=spares, sizes=sizes))
    assert spec.min_replicas is not None
    expected = [Expected(f"late-{one}", 10.0, "starting") for one in range(late)]
    decision = decide(joined(count), expected, spec.min_replicas, spec.replicas, spec.sizes)
    largest, possible = (spec.sizes.floor(min(n, spec.replicas)) for n in (count, count + late))
    if largest < spec.min_replicas or possible > largest:
        assert isinstance(decision, Defer)
        assert (decision.seconds is None) == (not late)
    else:
        assert isinstance(decision, FormRound)
        assert len(decision.members) == largest


def test_the_rest_stands_by_and_no_round_waits_for_pods_that_make_it_no_larger() -> None:
    assert decided(7) == 4
    assert decided(3, late=1) == (
        "waiting for late-0 (starting); the round starts with 2 of 8 replicas in 10 s"
    ), "4 are possible"
    assert decided(5, late=2) == 4, "8 are not"
    assert decided(1, late=2) == (
        "waiting for late-0, late-1 (starting); 1 of 8 replicas has joined, at least 2 required"
    )
    too_few = "no other pod is starting; 3 of 8 replicas have joined, at least 4 required"
    assert decided(3, sizes=GROUPS) == too_few


def test_a_member_on_its_way_keeps_its_rank_also_where_it_makes_the_round_no_larger() -> None:
    candidates = [Candidate(f"id-{rank}", f"p-{rank}", rank, rank) for rank in (0, 2, 3, 4)]
    late = Expected("p-1", 40.0, "not rejoined yet", 1, 14.0)
    decision = decide(candidates, [late], 2, 8, POWERS)
    assert isinstance(decision, Defer)
    assert decision.seconds == 14.0
    last = Expected("p-7", 40.0, "not rejoined yet", 7, 14.0)
    assert isinstance(decide(candidates, [last], 2, 8, POWERS), FormRound), "it would have no place"


@given(sizes, st.integers(1, 60), st.integers(1, 60) | st.none(), st.integers(0, 5))
def test_the_planner_wants_a_size_and_as_many_pods_as_were_asked_for(
    sizes: Sizes, replicas: int, least: int | None, spares: int
) -> None:
    asked = JobSpec(replicas=replicas, min_replicas=least, spares=spares, sizes=sizes)
    spec = sized(asked)
    assert spec.pods == asked.pods
    assert spec.sizes.floor(spec.replicas) == spec.replicas == replicas - spec.beyond_size
    smallest = spec.min_replicas or spec.replicas
    assert spec.sizes.ceil(smallest) == smallest <= spec.replicas
    assert sized(spec) == spec


def test_what_the_api_server_would_refuse_is_read_as_what_comes_nearest() -> None:
    fields = {"replicas": 10, "minReplicas": 3, "scaling": {"sizes": [8, 2, 4]}, "template": {}, "spares": 1}
    spec = read_spec(fields)
    assert (spec.replicas, spec.min_replicas, spec.spares, spec.beyond_size) == (8, 4, 3, 2)
    too_small = read_spec({"replicas": 3, "scaling": {"multipleOf": 4}})
    assert (too_small.replicas, too_small.sizes) == (3, ANY)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (JobSpec(replicas=8, min_replicas=2, sizes=POWERS), [2, 4]),
        (JobSpec(replicas=16, min_replicas=4, sizes=GROUPS), [4, 4, 4]),
        (JobSpec(replicas=32, min_replicas=4, sizes=GROUPS), [4, 4, 8, 12]),
        (JobSpec(replicas=10, min_replicas=2, spares=1, sizes=POWERS), [2, 4, 2, 1]),
        (JobSpec(replicas=8, sizes=POWERS), []),
        (JobSpec(replicas=8, min_replicas=4), [1, 1, 2]),
    ],
)
def test_extras_lead_from_one_size_to_another(spec: JobSpec, expected: list[int]) -> None:
    spec = sized(spec)
    base = spec.replicas if spec.min_replicas is None else spec.min_replicas
    assert chunks(spec, base) == expected


@given(sizes, st.integers(1, 60), st.integers(1, 60), st.integers(0, 9), st.integers(0, 70))
def test_extras_come_to_what_is_missing(
    sizes: Sizes, replicas: int, least: int, spares: int, covered: int
) -> None:
    spec = sized(JobSpec(replicas=replicas, min_replicas=min(least, replicas), spares=spares, sizes=sizes))
    assert spec.min_replicas is not None
    covered = min(max(covered, spec.min_replicas), spec.pods)
    found = chunks(spec, covered)
    assert sum(found) == spec.pods - covered
    assert all(count > 0 for count in found)
    reached = list(itertools.accumulate(found, initial=covered))[1:]
    assert all(spec.sizes.floor(pods) == pods for pods in reached if pods <= spec.replicas)
    if spec.sizes == ANY:
        assert found == pieces(spec.pods - covered), "as without sizes"
