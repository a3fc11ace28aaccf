"""Whatever a participant has to say, at any size that a job may have: written, it can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.contract.fields import MAX_INT32, MAX_NUMBER, MAX_ROUND, RecordError
from elasticjob.contract.participant_record import MAX_ANNOUNCED_ID, ParticipantRecord
from elasticjob.contract.ranks import MAX_MEMBERS, dump_ranks, parse_ranks
from elasticjob.contract.reports import (
    MAX_MESSAGE,
    MAX_MILLISECONDS,
    MAX_SOURCE,
    FailureReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import INLINE_MEMBERS, MemberList, RoundRecord

ANNOTATIONS_BYTES = 256 * 1024
"""What the API server takes of all annotations of one object."""
EVERY_OTHER = tuple(range(1, MAX_MEMBERS, 2))
"""No two are neighbours: nothing takes more room."""
messages = st.sampled_from(["x", "\x00", '"', "\U0001f600", "é"]).map(lambda c: c * (2 * MAX_MESSAGE))
ranks = st.sets(st.integers(0, MAX_MEMBERS - 1)).map(lambda found: tuple(sorted(found)))


@given(ranks | st.just(EVERY_OTHER), ranks | st.just(EVERY_OTHER), messages)
def test_a_report_names_any_members(missing: tuple[int, ...], silent: tuple[int, ...], message: str) -> None:
    report = RoundReport("n" * 64, True, missing, silent, True, True, True, MAX_NUMBER, message)
    read = RoundReport.parse(report.dump())
    assert (read.unarrived_ranks, read.silent_ranks) == (missing, silent)


def test_a_report_that_names_all_others_of_the_largest_job_is_short() -> None:
    report = RoundReport("n", unarrived_ranks=tuple(range(1, MAX_MEMBERS)), message="did not arrive in time")
    assert len(report.dump()) < 300


@given(messages)
def test_all_that_stands_in_a_participants_lease_is_read_and_fits(message: str) -> None:
    written = (
        ParticipantRecord(
            "i" * MAX_ANNOUNCED_ID,
            "Joining",
            "h" * 255 + ":65535",
            True,
            "u" * 64,
            MAX_NUMBER,
            99_999,
            "u" * 64,
            MAX_NUMBER,
            MAX_INT32,
        ),
        FailureReport(MAX_NUMBER, MAX_INT32, message, -(2**31), MAX_INT32, MAX_NUMBER, True),
        RoundReport("n" * 64, True, EVERY_OTHER, EVERY_OTHER, True, True, True, MAX_NUMBER, message),
        ProgressReport("n" * 64, MAX_NUMBER, MAX_NUMBER, MAX_MILLISECONDS, MAX_MILLISECONDS),
        StartsReport("n" * 64, 99_999, 99_999, message),
        ResumedReport("n" * 64, MAX_NUMBER, "m" * MAX_SOURCE, MAX_MILLISECONDS),
    )
    for record in written:
        type(record).parse(record.dump())
    assert sum(len(record.dump().encode()) for record in written) < ANNOTATIONS_BYTES / 2


@pytest.mark.parametrize(
    "text", ["1,", "a", "3-1", "2,1", "1,1", "0-5000", "5000", "-1", "1--2", "0-99999999", "٣"]
)
def test_what_no_ranks_are(text: str) -> None:
    with pytest.raises(ValueError, match="rank"):
        parse_ranks(text)


def test_the_list_of_the_largest_round_is_read_and_fits() -> None:
    ids = tuple(f"{i:0{MAX_ANNOUNCED_ID}d}" for i in range(MAX_MEMBERS))
    text = MemberList("u" * 64, MAX_NUMBER, "n" * 64, ids).dump()
    assert MemberList.parse(text).member_ids == ids
    assert len(text) < ANNOTATIONS_BYTES


@given(messages)
def test_the_record_that_everybody_reads_is_as_long_for_any_number_of_members(sentence: str) -> None:
    ids = tuple(f"{i:0{MAX_ANNOUNCED_ID}d}" for i in range(INLINE_MEMBERS))
    record = RoundRecord(
        "u" * 64, MAX_ROUND, "Active", "n" * 64, ids, "h" * 255 + ":65535", "c" * 64, sentence, sentence
    )
    assert RoundRecord.parse(record.dump()) == record
    large = RoundRecord(
        "uid", 3, "Active", "12345678", size=MAX_MEMBERS, leader_id="id-0", leader_endpoint="h:1"
    )
    assert len(large.dump()) < 400


def test_ranks_in_words() -> None:
    assert dump_ranks((20, 0, 1, 2, 7, 8)) == "0-2,7-8,20"
    assert parse_ranks("0-2,7-8,20") == (0, 1, 2, 7, 8, 20)
    assert (dump_ranks(()), tuple(parse_ranks(""))) == ("", ())


@pytest.mark.parametrize("sign", ['"', "\\"])
def test_an_id_takes_no_more_room_in_a_round_than_it_has_signs(sign: str) -> None:
    with pytest.raises(RecordError, match="escapes"):
        ParticipantRecord.parse(ParticipantRecord(sign * 8, "Joining", "h:1").dump())


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_ranks_are_compared_as_numbers(some: set[int], others: set[int]) -> None:
    one_by_one = parse_ranks(",".join(map(str, sorted(some))))
    assert (parse_ranks(dump_ranks(others)) == one_by_one) == (some == others)
    assert parse_ranks(dump_ranks(some)) == one_by_one == tuple(sorted(some))
    assert len(one_by_one) == len(some)
    assert hash(one_by_one) == hash(parse_ranks(dump_ranks(some)))
