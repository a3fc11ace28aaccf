"""Which checkpoint counts and which may go, whatever leftovers of earlier rounds and jobs do."""

from __future__ import annotations

import pytest

from elasticjob.checkpoint.decide import (
    CheckpointError,
    Claim,
    File,
    Marker,
    Name,
    StaleRoundError,
    Token,
    begin,
    counting,
    parse_claim,
    parse_marker,
    parse_name,
    superseded_by,
    surplus,
    surplus_claims,
)


def name(round_number: int, step: int, generation: int = 1) -> Name:
    return Name(Token(generation, round_number), step)


def claim(round_number: int, *complete: Name, job: str = "job", generation: int = 1) -> Claim:
    return Claim(Token(generation, round_number), job, frozenset(complete))


def test_names_and_claims_are_read_as_they_are_written() -> None:
    assert str(name(7, 120)) == "checkpoint-g0001-r000007-s00000120"
    for item in (name(7, 120), name(1_234_567, 987_654_321, generation=12_345)):
        assert parse_name(str(item)) == item
    assert [parse_name(text) for text in ("checkpoint-1", "checkpoint-g0001-r000007-s00000120.tmp", "x")] == [
        None
    ] * 3
    for begun in (claim(8, name(7, 120), name(7, 100)), claim(8), Claim(Token(1, 8), "job")):
        assert parse_claim(begun.file, begun.to_json()) == begun


@pytest.mark.parametrize("content", [b"", b"{}", b'{"job": "x", "complete": ["y"]}', b"\xff", b"[1]"])
def test_a_claim_that_can_not_be_read_is_an_error_that_names_it(content: bytes) -> None:
    with pytest.raises(
        CheckpointError, match=r"^round-g0001-r000008\.json does not say which round has begun"
    ):
        parse_claim("round-g0001-r000008.json", content)


def test_a_marker_shows_what_is_missing_or_short() -> None:
    marker = Marker({".metadata": File(10, 1), "__0_0.distcp": File(1000, 2)}, world_size=4)
    assert parse_marker(marker.to_json()) == marker
    assert marker.damage({".metadata": 10, "__0_0.distcp": 1000, "other": 3}) == ""
    assert marker.damage({".metadata": 10}) == "__0_0.distcp is missing"
    assert (
        marker.damage({".metadata": 10, "__0_0.distcp": 999}) == "__0_0.distcp has 999 bytes, expected 1,000"
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": {"a": 1}, "worldSize": 1}', b"\xff\x00"])
def test_a_marker_that_can_not_be_read_says_so(content: bytes) -> None:
    assert str(parse_marker(content)).startswith("complete.json cannot be read")


def test_the_first_round_in_an_empty_folder() -> None:
    assert begin([], [], "job", 3) == Token(1, 3)
    assert counting([], [], Token(1, 3)) == []


def test_a_checkpoint_that_was_copied_into_a_folder_counts() -> None:
    copied = name(9, 40, generation=3)
    token = begin([], [copied], "job", 1)
    assert token == Token(4, 1)
    assert counting([copied], [], token) == [copied]


def test_a_later_round_stays_in_its_generation_and_a_later_job_stands_above() -> None:
    assert begin([claim(2)], [], "job", 3) == Token(1, 3)
    assert begin([claim(9)], [], "the job applied again", 1) == Token(2, 1)


def test_a_round_that_begins_twice_is_the_same() -> None:
    assert begin([claim(3)], [], "job", 3) == Token(1, 3)
    own = name(3, 60)
    assert counting([name(2, 40), own], [claim(3, name(2, 40))], Token(1, 3)) == [own, name(2, 40)]


def test_without_a_round_number_each_start_stands_above_all_before_it() -> None:
    assert begin([claim(0), claim(0, generation=2)], [], "job", None) == Token(3, 0)


def test_a_leftover_of_an_earlier_round_is_told_to_stop() -> None:
    with pytest.raises(
        StaleRoundError, match=r"round 9 of job job has begun.* belongs to round 8, which is over"
    ):
        begin([claim(9)], [], "job", 8)


def test_a_leftover_of_an_earlier_job_is_told_to_stop_although_its_rounds_are_higher() -> None:
    with pytest.raises(StaleRoundError, match="another job has begun to use the folder since"):
        begin([claim(9), claim(1, job="next", generation=2)], [], "job", 10)


def test_what_an_earlier_round_completes_after_a_later_one_has_begun_is_void() -> None:
    seen, late = name(7, 100), name(7, 120)
    claims = [claim(7), claim(8, seen)]
    assert counting([seen, late], claims, Token(1, 9)) == [seen]
    assert counting([seen, late, name(8, 110)], claims, Token(1, 9)) == [name(8, 110), seen]


def test_a_later_round_counts_although_it_has_done_fewer_steps() -> None:
    complete = [name(1, 60), name(2, 40)]
    assert counting(complete, [claim(2, name(1, 60))], Token(1, 3))[0] == name(2, 40)


def test_a_round_that_has_not_looked_yet_voids_nothing() -> None:
    claims = [claim(7), Claim(Token(1, 8), "job")]
    assert counting([name(7, 120)], claims, Token(1, 9)) == [name(7, 120)]


def test_a_claim_that_comes_late_changes_nothing() -> None:
    claims = [claim(9, name(7, 100)), claim(8, name(7, 100), name(7, 120))]
    assert counting([name(7, 100), name(7, 120), name(8, 130)], claims, Token(1, 10)) == [name(7, 100)]


def test_a_damaged_one_that_was_passed_over_does_not_come_back() -> None:
    """A round takes what it has passed over out of its claim."""
    assert counting([name(7, 100), name(7, 120)], [claim(8, name(7, 100))], Token(1, 9)) == [name(7, 100)]


def test_a_claim_of_a_later_round_or_job_supersedes() -> None:
    assert superseded_by([claim(7), claim(8)], Token(1, 8)) is None
    assert superseded_by([claim(9), claim(8)], Token(1, 8)) == claim(9)
    assert superseded_by([claim(1, generation=2), claim(8)], Token(1, 8)) == claim(1, generation=2)


def test_of_those_that_count_the_newest_remain() -> None:
    found = [name(1, step) for step in (20, 40, 60)] + [name(2, 50)]
    assert surplus(found, found, name(2, 50), keep=2) == [name(1, 20), name(1, 40)]
    assert surplus(found, found, name(2, 50), keep=1) == [name(1, 20), name(1, 40), name(1, 60)]


def test_what_is_void_or_half_written_goes_and_uses_up_no_place() -> None:
    counts = [name(1, 20), name(2, 50)]
    found = [*counts, name(1, 30), name(2, 45)]
    assert surplus(found, counts, name(2, 50), keep=2) == [name(1, 30), name(2, 45)]


def test_nothing_newer_goes_whatever_counts() -> None:
    found = [name(1, 20), name(1, 40), name(2, 30)]
    assert surplus(found, [name(1, 20)], name(1, 20), keep=1) == []


def test_of_earlier_jobs_the_last_claim_remains() -> None:
    mine = claim(4, generation=2)
    old = [claim(1), claim(7), claim(2, generation=2), claim(3, generation=2)]
    assert surplus_claims([*old, mine], mine) == [old[0], old[2], old[3]]
