"""Ranks by topology: neighbours in the ring of ranks are near each other, and later rounds keep ranks."""

from __future__ import annotations

import random
import statistics
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.crossings import measured
from elasticjob.rounds.candidates import Defer, Expected, decide
from elasticjob.rounds.ranks import Candidate, assign_ranks
from elasticjob.rounds.topology import Domains, crossings
from elasticjob_operator.plan.rounds.crossings import crossings as counted_crossings
from elasticjob_operator.plan.state.status import Crossings, ParticipantStatus
from tests.docs_commands import ROOT

DEPTH = 3
domains = st.tuples(*[st.sampled_from(("", "a", "b", "c"))] * DEPTH)


def pods(*places: str, ranks: list[int | None] | None = None) -> list[Candidate]:
    """One for each place, such as ``zone/rack``."""
    known = ranks or [None] * len(places)
    return [
        Candidate(f"id-{slot}", f"p-{slot}", slot, known[slot], domains=tuple(place.split("/")))
        for slot, place in enumerate(places)
    ]


def slots(candidates: list[Candidate], size: int = 99) -> list[int | None]:
    return [c.slot for c in assign_ranks(candidates, size)]


@st.composite
def candidate_lists(draw: st.DrawFn, survivors: bool = True) -> list[Candidate]:
    places = draw(st.lists(domains, min_size=1, max_size=14))
    ranks: list[int | None] = [*draw(st.permutations(range(len(places) + 3)))[: len(places)]]
    new = draw(st.sets(st.integers(0, len(places)))) if survivors else set(range(len(places)))
    lead = draw(st.lists(st.booleans(), min_size=len(places), max_size=len(places)))
    return [
        Candidate(f"id-{i}", f"p-{i}", i, None if i in new else ranks[i], lead[i], places[i])
        for i in range(len(places))
    ]


@given(candidate_lists(), st.integers(1, 16))
def test_ranks_are_a_permutation_of_as_many_as_possible(candidates: list[Candidate], size: int) -> None:
    ranked = assign_ranks(candidates, size)
    assert len(set(ranked)) == len(ranked) == min(size, len(candidates))
    assert set(ranked) <= set(candidates)
    survivors = [c for c in candidates if c.last_group_rank is not None]
    assert len([c for c in ranked if c.last_group_rank is not None]) >= min(size, len(survivors)) - 1


@given(candidate_lists(), st.integers(0, 8))
def test_survivors_keep_their_ranks_when_newcomers_fill_every_gap(
    candidates: list[Candidate], more: int
) -> None:
    candidates = [Candidate(c.id, c.name, c.slot, c.last_group_rank, True, c.domains) for c in candidates]
    survivors = [c for c in candidates if c.last_group_rank is not None]
    gaps = max((c.last_group_rank or 0 for c in survivors), default=-1) + 1 - len(survivors)
    ranked = assign_ranks(candidates, len(candidates) + more)
    if len(candidates) - len(survivors) >= gaps:
        assert all(ranked[c.last_group_rank or 0] is c for c in survivors)
    kept = [c.last_group_rank for c in ranked if c.last_group_rank is not None]
    assert kept == sorted(kept), "their order never changes"


@given(candidate_lists(survivors=False))
def test_a_fresh_round_never_crosses_more_than_in_slot_order(candidates: list[Candidate]) -> None:
    """Nor more than there are domains, which no order can be below."""
    ranked = assign_ranks(candidates, len(candidates))
    ring, by_slot = [c.domains for c in ranked], [c.domains for c in candidates]
    for level in range(DEPTH):
        found = len({place[: level + 1] for place in ring})
        assert crossings(ring, level) == (found if found > 1 else 0) <= crossings(by_slot, level)
    if any(c.may_lead for c in candidates):
        assert ranked[0].may_lead


@given(st.lists(domains, min_size=1, max_size=6))
def test_no_order_crosses_less(places: list[Domains]) -> None:
    candidates = [Candidate(f"id-{i}", f"p-{i}", i, domains=place) for i, place in enumerate(places)]
    ring = [c.domains for c in assign_ranks(candidates, 9)]
    least = min(crossings(list(order), 0) for order in permutations(places))
    assert crossings(ring, 0) == least


@given(candidate_lists(survivors=False), st.integers(1, 14))
def test_where_domains_say_nothing_slots_decide(candidates: list[Candidate], size: int) -> None:
    alone = [Candidate(c.id, c.name, c.slot, domains=("", "", f"host-{c.slot}")) for c in candidates]
    assert slots(alone, size) == [c.slot for c in candidates][:size], "each on a host of its own"


def test_a_fresh_round_keeps_each_domain_together() -> None:
    assert slots(pods("z/a", "z/b", "z/a", "z/b")) == [0, 2, 1, 3]
    assert slots(pods("y/a", "z/a", "y/a", "z/b")) == [0, 2, 1, 3], "two racks of one name in two zones"
    assert slots(pods("z/", "z/b", "z/", "z/b")) == [0, 2, 1, 3], "without a label"


def test_a_fresh_round_leaves_the_smallest_domain_out() -> None:
    assert slots(pods("z/a", "z/b", "z/b", "z/b"), 3) == [1, 2, 3]


def test_a_shrink_gives_up_the_smallest_domain_first() -> None:
    racks = ["z/a", "z/a", "z/b", "z/c", "z/c", "z/c"]
    known: list[int | None] = list(range(6))
    assert slots(pods(*racks, ranks=known), 5) == [0, 1, 3, 4, 5]
    assert slots(pods(*racks, ranks=known), 4) == [0, 3, 4, 5], "then the next, its highest ranks first"
    assert slots(pods(*racks, ranks=known), 3) == [3, 4, 5]
    zones = ["y/a", "y/b", "y/b", "z/c", "z/d"]
    assert slots(pods(*zones, ranks=list(range(5))), 3) == [0, 1, 2], (
        "the smaller zone, though its racks are not"
    )


def test_a_newcomer_takes_the_rank_whose_neighbours_are_nearest() -> None:
    places = ["z/a", "z/a", "z/b", "z/b", "z/b", "z/a"]
    left = pods(*places, ranks=[0, 2, 3, 5, None, None])
    assert slots(left) == [0, 5, 1, 2, 4, 3], "ranks 1 and 4 are free, and slot 4 is in rack b"


def test_a_spare_in_the_rack_of_the_lost_member_comes_before_others() -> None:
    left = pods("z/a", "z/b", "z/b", "z/a", "z/b", ranks=[0, 1, 3, None, None])
    assert slots(left, 4) == [0, 1, 4, 2]


def test_the_place_of_a_member_in_a_larger_domain_is_kept_for_it() -> None:
    here = pods("z/a", "z/b", ranks=[0, 1])
    late = Expected("late", 40.0, "not rejoined yet", 2, 14.0, domains=("z", "b"))
    assert isinstance(decide(here, [late], 2, 2), Defer), "rank 0 alone in its rack is given up"


def test_five_thousand_are_ranked_in_a_moment() -> None:
    places = [f"z/{random.Random(slot).randrange(300)}" for slot in range(5000)]
    known = [None if slot % 3 == 0 else slot for slot in range(5000)]
    ranked = assign_ranks(pods(*places, ranks=known), 4800)
    assert len(ranked) == 4800


def members(*places: str) -> list[ParticipantStatus]:
    """In rank order, on these nodes. Slots are those of a job whose pods went to two places in turns."""
    by_slot = sorted(range(len(places)), key=lambda rank: (rank % 2, rank))
    return [
        ParticipantStatus(f"id-{rank}", f"p-{rank}", f"uid-{rank}", "Member", by_slot[rank], rank, place)
        for rank, place in enumerate(places)
    ]


NODES: dict[str, Domains] = {
    f"{zone}{rack}{host}": ("", f"zone={zone}", f"rack={rack}", f"host={host}")
    for zone in "yz"
    for rack in "ab"
    for host in "12"
}


def test_the_status_counts_crossings_by_each_label_that_tells_members_apart() -> None:
    found = counted_crossings(members("ya1", "ya2", "za1", "za2"), NODES)
    assert found == (Crossings("zone", 2, 2, 4),), "by racks they are apart as by zones"
    found = counted_crossings(members("ya1", "ya2", "yb1", "yb2", "za1", "za2"), NODES)
    assert [(one.key, one.domains, one.crossings) for one in found] == [("zone", 2, 2), ("rack", 3, 3)]
    assert counted_crossings(members("ya1", "ya2"), NODES) == (), "in one rack, and none shares its host"
    assert counted_crossings(members("ya1", "ya1", "za2"), {}) == (), "nodes cannot be seen"


def test_the_page_has_the_figures_of_jobs_in_racks() -> None:
    page = (ROOT / "docs" / "use" / "topology.md").read_text()
    for name, found in measured(1000).items():
        row = f"| {statistics.median(found):.0f} | {min(found)} to {max(found)} |"
        assert any(line.startswith(f"| {name}") and line.endswith(row) for line in page.splitlines()), name
