"""The members of a round and their order: I2 and I3, and the rules on ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticjob.rounds.candidates import Defer, Expected, FormRound, decide
from elasticjob.rounds.ranks import Candidate, assign_ranks


@st.composite
def candidate_lists(draw: st.DrawFn) -> list[Candidate]:
    size = draw(st.integers(0, 12))
    ranks = draw(st.permutations(range(15)))
    newcomers = draw(st.sets(st.integers(0, max(0, size - 1)), max_size=size))
    may_lead = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return [
        Candidate(f"id-{i}", f"pod-{i}", i, None if i in newcomers else ranks[i], may_lead[i])
        for i in range(size)
    ]


@given(candidate_lists(), st.integers(1, 12))
def test_seats_are_distinct_and_as_many_as_possible(candidates: list[Candidate], size: int) -> None:
    ranked = assign_ranks(candidates, size)
    assert len(ranked) == min(size, len(candidates)) == len({c.id for c in ranked})
    assert set(ranked) <= set(candidates)


@given(candidate_lists())
def test_a_survivor_keeps_its_rank_when_newcomers_fill_every_gap(candidates: list[Candidate]) -> None:
    candidates = [Candidate(c.id, c.name, c.slot, c.last_group_rank) for c in candidates]
    ranked = assign_ranks(candidates, len(candidates))
    survivors = [c for c in candidates if c.last_group_rank is not None]
    gaps = max((c.last_group_rank or 0 for c in survivors), default=-1) + 1 - len(survivors)
    if len(candidates) - len(survivors) >= gaps:
        assert all(ranked[c.last_group_rank or 0] is c for c in survivors)


@given(candidate_lists())
def test_the_order_of_survivors_never_changes(candidates: list[Candidate]) -> None:
    candidates = [Candidate(c.id, c.name, c.slot, c.last_group_rank) for c in candidates]
    order = [
        c.last_group_rank for c in assign_ranks(candidates, len(candidates)) if c.last_group_rank is not None
    ]
    assert order == sorted(order)


@given(candidate_lists())
def test_who_may_not_lead_leads_only_if_nobody_may(candidates: list[Candidate]) -> None:
    ranked = assign_ranks(candidates, len(candidates))
    if any(c.may_lead for c in candidates):
        assert ranked[0].may_lead


def test_a_spare_takes_over_the_lost_rank() -> None:
    spare = Candidate("s", "mnist-3-0", 3)
    left = [Candidate("a", "mnist-0-0", 0, 0), Candidate("c", "mnist-2-0", 2, 2)]
    assert [c.id for c in assign_ranks([*left, spare], 3)] == ["a", "s", "c"]


@given(candidate_lists(), st.integers(1, 6), st.integers(0, 6), st.lists(st.floats(0, 60), max_size=4))
def test_a_round_is_never_smaller_than_minimum_nor_larger_than_replicas(
    candidates: list[Candidate], minimum: int, more: int, lefts: list[float]
) -> None:
    """I3, and I6: what is not formed says what it waits for."""
    replicas = minimum + more
    decision = decide(candidates, [Expected("p", left, "why") for left in lefts], minimum, replicas)
    if isinstance(decision, FormRound):
        assert minimum <= len(decision.members) <= replicas
    else:
        assert isinstance(decision, Defer)
        assert decision.why
        if len(candidates) >= minimum:
            assert decision.seconds is not None
            assert decision.seconds > 0


def test_nobody_is_waited_for_once_all_wanted_are_there() -> None:
    candidates = [Candidate(f"id-{i}", f"p-{i}", i) for i in range(2)]
    assert isinstance(decide(candidates, [Expected("late", 40.0, "not rejoined yet")], 1, 2), FormRound)


def test_a_spare_keeps_off_the_seat_of_a_member_that_is_on_its_way() -> None:
    candidates = [Candidate("a", "p-0", 0, 0), Candidate("s", "p-2", 2)]
    late = Expected("p-1", 45.0, "not rejoined yet", 1, rank_held_seconds=1.5)
    decision = decide(candidates, [late], 2, 2)
    assert decision == Defer(
        1.5, "enough replicas have joined; waiting briefly for p-1 to rejoin with the same group rank"
    )
    patience_is_over = Expected("p-1", 43.0, "not rejoined yet", 1, rank_held_seconds=0.0)
    assert isinstance(decide(candidates, [patience_is_over], 2, 2), FormRound)
    everybody = [Candidate("a", "p-0", 0, 0), Candidate("b", "p-1", 1, 1), Candidate("s", "p-2", 2)]
    decision = decide(everybody, [Expected("p-3", 45.0, "not rejoined yet", 3, 1.5)], 2, 2)
    assert isinstance(decision, FormRound), "no newcomer takes a seat: nothing is gained by waiting"
    assert [c.id for c in decision.members] == ["a", "b"]


def test_a_member_that_leaves_does_not_take_the_place_of_one_with_a_lower_rank() -> None:
    quick = [Candidate("c", "p-2", 2, 2), Candidate("d", "p-3", 3, 3)]
    slow = [Expected(f"p-{rank}", 45.0, "not rejoined yet", rank, 14.0) for rank in range(2)]
    decision = decide(quick, slow, 1, 2)
    assert isinstance(decision, Defer)
    assert "p-0, p-1" in decision.why
    decision = decide([Candidate("b", "p-1", 1, 1), *quick], slow[:1], 1, 2)
    assert decision == Defer(
        14.0, "enough replicas have joined; waiting briefly for p-0 to rejoin with the same group rank"
    )
    decision = decide([Candidate("a", "p-0", 0, 0), *quick], slow[1:], 1, 1)
    assert isinstance(decision, FormRound), "the slow one would have no place"
    assert [c.id for c in decision.members] == ["a"]


def test_the_sentence_gives_each_who_is_awaited_the_reason_of_its_own() -> None:
    members = [Expected(f"p-{i}", 40.0, "not rejoined yet") for i in range(5)]
    new = [Expected("slot 7", 5.0, "pod not created yet"), Expected("p-8", 9.0, "starting", where="node b")]
    decision = decide([Candidate("id", "p-9", 9)], [*members, *new], 2, 9)
    assert decision == Defer(
        5.0,
        "waiting for slot 7 (pod not created yet) and p-8 (starting on node b) and p-0, p-1, p-2 and 2 more "
        "(not rejoined yet)",
        "1 of 9 replicas has joined, at least 2 required",
    )


def test_the_sentence_has_an_end_however_many_reasons_there_are() -> None:
    awaited = [Expected(f"p-{i}", 5.0, "starting", where=f"node-{i}") for i in range(1000)]
    decision = decide([Candidate("id", "p", 0)], awaited, 1, 1001)
    assert decision == Defer(
        5.0,
        "waiting for p-0 (starting on node-0) and p-1 (starting on node-1) and p-2 (starting on node-2) and "
        "997 more; the round starts with 1 of 1001 replicas in 5 s",
    )
