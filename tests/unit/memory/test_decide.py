"""Which saves can be resumed, what may go, and where copies go: the pure part of memory checkpoints."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.memory import decide
from elasticjob.memory.decide import Place, Shift, choose_shift, in_order
from elasticjob.memory.pieces import Held, Inventory, PieceName, Save, parse


def name(rank: int, world: int = 2, step: int = 10, round_number: int = 1, folder: str = "f") -> PieceName:
    return PieceName("job", folder, Save(1, round_number, 1, step, world), rank)


def agent(number: int, *names: PieceName, own: bool = True) -> Inventory:
    held = tuple(Held(one, 100, 7, own) for one in names)
    return Inventory(f"agent{number}", f"10.0.0.{number}:1", held)


def resumable(*inventories: Inventory) -> list[Save]:
    return [one.save for one in decide.candidates(inventories, "f")]


def test_a_save_counts_if_every_piece_is_held() -> None:
    assert resumable(agent(0, name(0)), agent(1, name(1))) == [name(0).save]
    assert resumable(agent(0, name(0)), agent(1)) == []
    assert resumable(agent(0, name(0), name(1))) == [name(0).save]


def test_the_newest_comes_first_and_rounds_come_before_steps() -> None:
    early, late = [(name(r, step=103), name(r, step=101, round_number=2)) for r in (0, 1)]
    assert resumable(agent(0, *early), agent(1, *late)) == [
        name(0, step=101, round_number=2).save,
        name(0, step=103).save,
    ]


def test_pieces_of_two_saves_do_not_make_one() -> None:
    assert resumable(agent(0, name(0, step=10)), agent(1, name(1, step=11))) == []
    assert resumable(agent(0, name(0)), agent(1, name(1, round_number=2))) == []
    assert resumable(agent(0, name(0, world=2)), agent(1, name(1, world=3))) == []


def test_what_was_saved_after_opening_the_checkpoints_again_is_newer_and_does_not_mix() -> None:
    """A script that opens them twice in one round may save another state at the same step."""
    early, late = name(0), name(1)._replace(save=name(1).save._replace(opening=2))
    assert resumable(agent(0, early), agent(1, late)) == []
    both = [early, name(1), late._replace(rank=0), late._replace(save=late.save._replace(step=9))]
    assert resumable(agent(0, *both), agent(1, late)) == [late.save, early.save]
    assert decide.left_over([early, late], None, 1, 2) == [early]
    assert decide.left_over([early, late], early.save, 1, 2) == []


def test_pieces_of_another_folder_do_not_count() -> None:
    assert resumable(agent(0, name(0)), agent(1, name(1, folder="g"))) == []
    assert resumable(agent(0, name(0, folder="g"), name(1, folder="g"))) == []


def test_own_pieces_are_preferred_to_copies() -> None:
    copy, own = agent(0, name(0), own=False), agent(1, name(0), name(1))
    (one,) = decide.candidates([copy, own], "f")
    assert [holder.inventory.agent for holder in one.pieces[0]] == ["agent1", "agent0"]


def test_an_index_is_read_by_a_rank_beside_the_piece_and_the_work_is_shared() -> None:
    everything = [name(rank, world=4) for rank in range(4)]
    agents = [agent(0, *everything), agent(0, *everything), agent(1, *everything[2:])]
    (one,) = decide.candidates(agents, "f")
    assert one.pieces[0][0].ranks == (0, 1)
    assert one.readers() == (0, 1, 2, 0)


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_the_loss_of_a_pod_costs_one_save_at_most(world: int) -> None:
    """All states of a save (of each rank: not begun, with its agent, copied) and each loss of one pod. Step
    10 is complete everywhere: without that no rank begins step 11."""
    for states in itertools.product(range(3), repeat=world):
        held: list[list[PieceName]] = [[] for _ in range(world)]
        for rank, state in enumerate(states):
            for step, copies in ((10, 2), (11, state)):
                for holder in (rank, rank + 1)[:copies]:
                    held[holder % world].append(name(rank, world, step))
        for lost in (None, *range(world)):
            left = [agent(rank, *held[rank]) for rank in range(world) if rank != lost]
            assert resumable(*left)[0].step >= 10


# -- what may go -------------------------------------------------------------------------------------------


def test_what_is_older_than_a_complete_save_may_go() -> None:
    held = [name(0, step=s, round_number=r) for r, s in ((1, 50), (2, 10), (2, 11), (2, 12))]
    assert decide.superseded(held, held[2].save) == held[:2]


def test_after_a_resume_only_what_was_loaded_is_left_of_former_rounds() -> None:
    held = [name(0, step=s, round_number=r) for r, s in ((1, 50), (2, 10), (2, 11), (3, 12))]
    assert decide.left_over(held, held[1].save, 3, 1) == [held[0], held[2]]
    assert decide.left_over(held, None, 3, 1) == held[:3]


def test_a_copy_goes_when_its_piece_was_written_over() -> None:
    complete, failed, new = (name(1, step=step) for step in (6, 7, 8))
    others = [name(0, step=7), name(1, step=7, round_number=0), name(1, world=3, step=7)]
    assert decide.replaced([complete, failed, *others], [complete, new], new) == [failed]


saves = st.builds(Save, st.just(1), st.integers(1, 3), st.integers(1, 2), st.integers(0, 4), st.just(2))
pieces = st.builds(PieceName, st.just("job"), st.just("f"), saves, st.integers(0, 1))


@given(st.lists(st.lists(pieces, max_size=8), min_size=1, max_size=3))
def test_no_save_is_made_up_and_none_is_missed(held: list[list[PieceName]]) -> None:
    everywhere = {piece for one in held for piece in one}
    found = resumable(*(agent(number, *one) for number, one in enumerate(held)))
    assert found == sorted(found, reverse=True)
    for save in {piece.save for piece in everywhere}:
        whole = {PieceName("job", "f", save, rank) for rank in range(save.world)} <= everywhere
        assert (save in found) == whole


@given(st.lists(pieces, max_size=12), saves)
def test_what_training_resumed_from_and_what_is_newest_are_never_let_go(
    held: list[PieceName], save: Save
) -> None:
    assert all(one.save < save for one in decide.superseded(held, save))
    assert not any(one.save == save or one.save.round >= 4 for one in decide.left_over(held, save, 4, 1))


# -- where copies go ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("", Shift(0)),
        ("a", Shift(0)),
        ("ab", Shift(1)),
        ("aabb", Shift(2)),
        ("abab", Shift(1)),
        ("aabbcc", Shift(2)),
        ("aaa", Shift(1, 3)),
        ("aaab", Shift(1, 2)),
        ("????", Shift(1)),
    ],
)
def test_copies_go_to_another_node(nodes: str, expected: Shift) -> None:
    places = [Place("" if node == "?" else node) for node in nodes]
    assert choose_shift(places) == expected


@given(st.lists(st.sampled_from("abcde"), min_size=2, max_size=12))
def test_in_order_of_nodes_copies_go_to_another_one_unless_half_of_the_members_are_on_one(
    nodes: list[str],
) -> None:
    places = {2 * rank: Place(node) for rank, node in enumerate(nodes)}
    ranks = in_order(places)
    assert sorted(ranks) == sorted(places)
    together = choose_shift([places[rank] for rank in ranks]).together
    assert (together == 0) == (2 * max(map(nodes.count, nodes)) <= len(nodes))


def test_copies_go_to_another_zone_where_there_is_one() -> None:
    places = [Place(node, zone) for node, zone in zip("abcd", "xxyy", strict=True)]
    assert choose_shift(places) == Shift(2)


def test_another_node_comes_before_another_zone() -> None:
    places = [Place(node, zone) for node, zone in zip("abab", "xyyx", strict=True)]
    assert choose_shift(places).shift == 1
    assert choose_shift(places).together == 0


@given(st.lists(st.builds(Place, st.sampled_from("abc"), st.sampled_from("xy")), min_size=2, max_size=8))
def test_no_other_shift_has_fewer_on_the_same_node(places: list[Place]) -> None:
    def together(shift: int) -> int:
        return sum(places[r].node == places[(r + shift) % len(places)].node for r in range(len(places)))

    found = choose_shift(places)
    assert 0 < found.shift < len(places)
    assert found.together == together(found.shift) == min(map(together, range(1, len(places))))


# -- room, names -------------------------------------------------------------------------------------------


def test_a_pod_says_why_it_has_no_room() -> None:
    held = {"own pieces": 60 << 20, "buffers": 0}
    assert decide.room(100 << 20, held, 40 << 20) == ""
    why = decide.room(100 << 20, held, 41 << 20)
    assert why.startswith(
        "a piece of 41 MiB has no room beside 60 MiB own pieces: a pod may hold 100 MiB, and needs 2 times"
    )


def test_a_name_survives_the_way_over_the_network() -> None:
    assert parse(name(1).fields()) == name(1)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        "job",
        ["j", "f", 1, 1, 1, 1, 2],
        ["j", 5, 1, 1, 1, 1, 2, 0],
        ["j", "f", 1, 1, 1, -1, 2, 0],
        ["j", "f", 1, 1, 1, True, 2, 0],
        ["j", "f", 1, 1, 1, 1, 2, 2],
        ["j", "f", 1, 1, 1, 2**53, 2, 0],
        ["j", "f", 1, 1, 1, 1.0, 2, 0],
    ],
)
def test_what_is_no_name_is_refused(fields: object) -> None:
    with pytest.raises(ValueError, match="no name of a piece"):
        parse(fields)
