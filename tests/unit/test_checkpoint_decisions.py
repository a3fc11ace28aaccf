"""Which checkpoint counts and which may go, whatever leftovers of earlier rounds and jobs do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob.checkpoint.errors import CheckpointError, StaleRoundError
from elasticjob.checkpoint.ownership import begin, contenders, own, rival, superseded_by
from elasticjob.checkpoint.records import (
    Claim,
    File,
    Holder,
    Marker,
    Name,
    Token,
    holder_of,
    is_unfinished_claim,
    parse_claim,
    parse_marker,
    parse_name,
)
from elasticjob.checkpoint.retention import never_counts, surplus, surplus_claims
from elasticjob.checkpoint.selection import counting, own_first


def name(round_number: int, step: int, generation: int = 1) -> Name:
    return Name(Token(generation, round_number), step)


def holder(job: str = "job") -> Holder:
    return holder_of(job or None, "", "", "")


ME = holder()


def claim(round_number: int, *complete: Name, job: str = "job", generation: int = 1) -> Claim:
    return Claim(Token(generation, round_number), holder(job), frozenset(complete))


def beginning(round_number: int, job: str = "job", generation: int = 1) -> Claim:
    return Claim(Token(generation, round_number), holder(job))


def test_names_and_claims_are_read_as_they_are_written() -> None:
    assert str(name(7, 120)) == "checkpoint-g0001-r000007-s00000120"
    for item in (name(7, 120), name(1_234_567, 987_654_321, generation=12_345)):
        assert parse_name(str(item)) == item
    assert [parse_name(text) for text in ("checkpoint-1", "checkpoint-g0001-r000007-s00000120.tmp", "x")] == [
        None
    ] * 3
    full = Holder("job", "0123abcd", "run", "job-0-0", "boot/pid:[1]/2/3")
    for begun in (
        claim(8, name(7, 120), name(7, 100)),
        claim(8),
        beginning(8),
        Claim(Token(1, 8), full, frozenset(), beat=7, ended=True),
    ):
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
    assert begin([], [], ME, 3) == Token(1, 3)
    assert counting([], [], Token(1, 3)) == []


def test_a_checkpoint_that_was_copied_into_a_folder_counts() -> None:
    copied = name(9, 40, generation=3)
    token = begin([], [copied], ME, 1)
    assert token == Token(4, 1)
    assert counting([copied], [], token) == [copied]


def test_a_later_round_stays_in_its_generation_and_a_later_job_stands_above() -> None:
    assert begin([claim(2)], [], ME, 3) == Token(1, 3)
    assert begin([claim(9)], [], holder("the job applied again"), 1) == Token(2, 1)


def test_a_round_that_begins_twice_is_the_same() -> None:
    assert begin([claim(3)], [], ME, 3) == Token(1, 3)
    own = name(3, 60)
    assert counting([name(2, 40), own], [claim(3, name(2, 40))], Token(1, 3)) == [own, name(2, 40)]


def test_without_a_round_number_each_start_stands_above_all_before_it() -> None:
    assert begin([claim(0), claim(0, generation=2)], [], ME, None) == Token(3, 0)


def test_a_leftover_of_an_earlier_round_must_stop() -> None:
    for claims in ([claim(9)], [claim(9), claim(1, job="next", generation=2)]):
        with pytest.raises(
            StaleRoundError, match=r"^round 9 of job job has begun.* belongs to round 8, which is over"
        ):
            begin(claims, [], ME, 8)


def test_a_job_goes_on_above_the_job_that_used_the_folder_in_between() -> None:
    claims = [claim(9), claim(20, job="next", generation=2)]
    assert begin(claims, [], ME, 10) == Token(3, 10)
    assert begin([*claims, claim(10, generation=3)], [], ME, 11) == Token(3, 11)


def test_the_generation_stands_above_checkpoints_whose_claims_have_been_removed() -> None:
    foreign = [name(7, 900, generation=3)]
    for claims in ([], [claim(2)], [claim(2, generation=2, job="next")]):
        assert begin(claims, foreign, ME, 7) == Token(4, 7)
        assert begin(claims, foreign, ME, None) == Token(4, 0)
        assert counting(foreign, [], Token(4, 7)) == foreign


def test_a_job_that_was_killed_while_it_began_does_not_own_the_generation() -> None:
    assert begin([beginning(1)], [], ME, 2) == Token(2, 2)
    assert begin([claim(1, job="other"), beginning(1)], [], ME, 2) == Token(2, 2)


def test_only_another_job_that_has_not_ended_is_a_rival() -> None:
    other = claim(5, job="other")
    assert rival([], Token(1, 1), ME) is None
    assert rival([other], Token(2, 1), ME) == other
    assert rival([replace(other, ended=True)], Token(2, 1), ME) is None
    assert rival([claim(3), other], Token(1, 4), ME) is None, "the job's own generation"
    assert rival([claim(3, generation=2), other], Token(3, 4), ME) is None, "its own claim is the last"
    third = replace(other, token=Token(2, 5))
    assert rival([claim(3), third], Token(3, 4), ME) == third
    transient = beginning(9, job="third")
    assert rival([other, transient], Token(2, 1), ME) == other
    next_round = beginning(6, job="other")
    assert rival([replace(other, ended=True), next_round], Token(2, 1), ME) == next_round, "it is beginning"


def test_of_two_starts_without_an_elasticjob_the_same_run_or_process_is_no_rival() -> None:
    def plain(run: str = "", process: str = "") -> Holder:
        return holder_of(None, run, "", process)

    def last(who: Holder) -> Claim:
        return Claim(Token(1, 0), who, frozenset())

    for mine, before, found in (
        (plain("x"), plain("x"), False),
        (plain("x"), plain("y"), True),
        (plain("none"), plain("none"), True),
        (plain(process="p"), plain(process="p"), False),
        (plain(), plain(), True),
        (plain("x"), holder("x"), True),
        (holder("x"), plain("x"), True),
    ):
        assert bool(rival([last(before)], Token(2, 1), mine)) == found, (mine, before)


def test_two_that_begin_at_once_see_each_other_and_do_not_supersede() -> None:
    mine, other = beginning(1), beginning(5, job="other")
    assert contenders([mine, other, claim(1, generation=2, job="other")], mine) == [other]
    assert superseded_by([mine, other], mine) is None
    two = [holder_of(None, "", "", "") for _ in range(2)]
    assert Claim(Token(1, 0), two[0]).file != Claim(Token(1, 0), two[1]).file


def test_a_job_resumes_from_its_own_and_from_another_jobs_only_if_it_has_none() -> None:
    claims = [claim(9), claim(1, job="other", generation=2), beginning(1, job="third", generation=3)]
    mine, foreign = [name(8, 800), name(9, 900)], [name(1, 950, generation=2)]
    assert own(claims, ME) == {1}
    assert own_first([*mine, *foreign], own(claims, ME)) == [mine[1], mine[0], *foreign]
    assert own_first([*mine, *foreign], own(claims, holder("third"))) == [*foreign, mine[1], mine[0]]


def test_what_can_never_count() -> None:
    listed, late, half = name(7, 100), name(7, 120), name(7, 140)
    fresh = name(8, 130)
    claims = [claim(7), claim(8, listed)]
    found = [listed, late, half, fresh]
    for token in (Token(1, 8), Token(1, 9)):
        assert never_counts(found, [listed, late], claims, token, {1}) == [late, half]
    assert never_counts(found, [listed, late], claims, Token(1, 8), {2}) == [half], (
        "another job's is left alone"
    )
    assert never_counts(found, [listed, late], claims, Token(1, 7), {1}) == [], "round 7 begins: nothing yet"
    assert never_counts(found, [], [], Token(1, 9), {1}) == []
    assert never_counts(found, [late], [*claims, beginning(9)], Token(1, 9), {1}) == [late, half]


def test_what_a_kill_leaves_of_a_claim_is_known() -> None:
    left = claim(8).file + ".0123456789abcdef.tmp"
    owner = claim(8).holder.owner
    assert is_unfinished_claim(left, Token(1, 9), owner)
    assert not is_unfinished_claim(left, Token(1, 8), owner), "this round may be writing it"
    assert is_unfinished_claim(left, Token(1, 8), "01234567"), "another one that begins writes it again"
    assert not is_unfinished_claim(left, Token(1, 7), owner)
    assert not is_unfinished_claim(claim(8).file, Token(1, 9), owner)


def test_what_an_earlier_round_completes_after_a_later_one_has_begun_is_void() -> None:
    seen, late = name(7, 100), name(7, 120)
    claims = [claim(7), claim(8, seen)]
    assert counting([seen, late], claims, Token(1, 9)) == [seen]
    assert counting([seen, late, name(8, 110)], claims, Token(1, 9)) == [name(8, 110), seen]


def test_a_later_round_counts_although_it_has_done_fewer_steps() -> None:
    complete = [name(1, 60), name(2, 40)]
    assert counting(complete, [claim(2, name(1, 60))], Token(1, 3))[0] == name(2, 40)


def test_a_round_that_has_not_looked_yet_voids_nothing() -> None:
    claims = [claim(7), beginning(8)]
    assert counting([name(7, 120)], claims, Token(1, 9)) == [name(7, 120)]


def test_a_claim_that_comes_late_changes_nothing() -> None:
    claims = [claim(9, name(7, 100)), claim(8, name(7, 100), name(7, 120))]
    assert counting([name(7, 100), name(7, 120), name(8, 130)], claims, Token(1, 10)) == [name(7, 100)]


def test_a_damaged_one_that_was_passed_over_does_not_come_back() -> None:
    """A round takes what it has passed over out of its claim."""
    assert counting([name(7, 100), name(7, 120)], [claim(8, name(7, 100))], Token(1, 9)) == [name(7, 100)]


def test_a_claim_of_a_later_round_or_job_supersedes() -> None:
    assert superseded_by([claim(7), claim(8)], claim(8)) is None
    assert superseded_by([claim(9), claim(8)], claim(8)) == claim(9)
    later = claim(1, job="other", generation=2)
    assert superseded_by([later, claim(8)], claim(8)) == later


def test_of_those_that_count_the_newest_remain() -> None:
    counts = [name(1, step) for step in (20, 40, 60)] + [name(2, 50)]
    assert surplus(counts, {1}, name(2, 50), keep=2) == [name(1, 20), name(1, 40)]
    assert surplus(counts, {1}, name(2, 50), keep=1) == [name(1, 20), name(1, 40), name(1, 60)]


def test_what_other_jobs_have_completed_remains_and_uses_up_no_place() -> None:
    theirs, mine = [name(9, 20), name(9, 40)], [name(1, step, generation=2) for step in (50, 60, 70)]
    assert surplus([*theirs, *mine], {2}, mine[2], keep=2) == [mine[0]]
    assert surplus([*theirs, *mine], {1, 2}, mine[2], keep=2) == [*theirs, mine[0]]


def test_nothing_newer_goes_than_what_is_known_to_be_good() -> None:
    counts = [name(1, 20), name(1, 40), name(2, 30)]
    assert surplus(counts, {1}, name(1, 20), keep=1) == []
    assert surplus(counts, {1}, name(1, 40), keep=1) == [name(1, 20)]


def test_of_earlier_jobs_the_last_claim_remains_while_there_are_checkpoints_of_theirs() -> None:
    mine = claim(4, generation=2)
    old = [
        claim(1),
        claim(7),
        claim(2, generation=2),
        claim(3, generation=2),
        beginning(5, "x", generation=2),
    ]
    theirs = [name(7, 10), name(3, 10, generation=2)]
    assert surplus_claims([*old, mine], mine, theirs) == [old[0], *old[2:]]
    assert surplus_claims([*old, mine], mine, theirs[1:]) == old
    assert surplus_claims([claim(7), beginning(8), mine], mine, theirs) == [beginning(8)]
