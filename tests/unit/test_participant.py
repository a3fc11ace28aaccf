"""The participant's core: what it makes of the records that it sees, in whatever order they come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.contract.round_record import Outcome, Phase, RoundRecord
from elasticjob.core.participant import RANK_UNKNOWN, AnnounceAgain, Enter, KeepWaiting, Participant, Stop

ROUND = RoundRecord("job", 1, "Active", "n1", ("mine", "other"), "h:1")


def joined(record: RoundRecord | None = None, new_id: str = "mine", uid: str = "") -> Participant:
    core = Participant(uid)
    core.announce(new_id, "h:1", False, 1)
    if record is not None:
        core.observe(record)
    return core


def running() -> Participant:
    core = joined(ROUND)
    assert isinstance(core.take_action(), Enter)
    return core


def test_enters_the_round_that_has_its_id() -> None:
    step = joined(ROUND, "other").take_action()
    assert isinstance(step, Enter)
    m = step.membership
    assert (m.number, m.group_rank, m.size, m.leader_endpoint) == (1, 1, 2, "h:1")
    assert m.prefix == "elasticjob/job/1/n1"


def test_who_has_no_place_announces_itself_for_the_next_round_and_waits() -> None:
    core = joined(ROUND, "third")
    assert isinstance(core.take_action(), AnnounceAgain)
    record = core.announce("third-2", "h:1", False, 1)
    assert (record.seen("job"), record.from_round) == (1, 0)
    assert isinstance(core.take_action(), KeepWaiting)
    core.observe(replace(ROUND, phase="Broken", waiting_message="1 of 2"))
    assert core.take_action() == KeepWaiting("1 of 2"), (
        "what was announced during the round is for the next one"
    )


@pytest.mark.parametrize("phase", ["Active", "Broken"])
def test_an_announcement_from_before_a_round_that_was_missed_is_made_anew(phase: str) -> None:
    """It may have been a member's of that round, and that is not remembered (I4)."""
    core = joined(replace(ROUND, number=2, phase=phase), "third")
    assert isinstance(core.take_action(), AnnounceAgain)
    assert core.announce("third-2", "h:1", False, 1).seen("job") == 2


def test_an_announcement_is_for_the_job_that_was_seen() -> None:
    core = joined(replace(ROUND, number=7, phase="Broken"))
    assert core.announce("x", "h:1", False, 1).seen("job") == 7
    assert core.announced is not None
    assert core.announced.seen("job-2") == 0
    core.observe(replace(ROUND, job_uid="job-2", number=0, phase="Broken", member_ids=()))
    assert isinstance(core.take_action(), KeepWaiting)
    core.observe(replace(ROUND, job_uid="job-2", member_ids=("other", "x"), leader_id="other"))
    assert isinstance(core.take_action(), Enter)


LARGE = replace(ROUND, member_ids=(), size=40, leader_id="mine")


def test_of_a_large_round_the_leader_knows_its_rank_and_the_others_ask() -> None:
    step = joined(LARGE).take_action()
    assert isinstance(step, Enter)
    assert (step.membership.group_rank, step.membership.size) == (0, 40)
    core = joined(LARGE, "other")
    step = core.take_action()
    assert isinstance(step, Enter)
    assert (step.membership.group_rank, step.membership.size) == (RANK_UNKNOWN, 40)
    assert core.end_reason() == ""
    core.set_group_rank(17)
    assert core.membership == replace(step.membership, group_rank=17)


def test_who_is_no_member_of_a_large_round_did_not_come_from_it() -> None:
    core = joined(LARGE, "other")
    core.take_action()
    core.drop_membership()
    record = core.announce("other-2", "h:1", False, 1)
    assert (record.from_round, record.seen("job")) == (0, 1)
    assert isinstance(core.take_action(), KeepWaiting)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETE.value, "Failed"])
def test_who_still_asks_for_its_rank_when_the_job_has_ended_stops(outcome: str) -> None:
    """It was no member, and the leader that could have said so may be gone: it asked for ever."""
    core = joined(LARGE, "another")
    assert isinstance(core.take_action(), Enter)
    assert core.end_reason() == ""
    core.observe(
        replace(LARGE, phase="Closed", outcome=outcome, message="all 40 members of round 3 succeeded")
    )
    assert core.end_reason() == "the job has ended: all 40 members of round 3 succeeded"
    core.announce("again", "h:1", False, 1)
    assert core.take_action() == Stop(
        outcome == Outcome.COMPLETE.value, "all 40 members of round 3 succeeded"
    )


def test_who_has_its_rank_is_not_disturbed_when_the_job_is_complete() -> None:
    core = joined(LARGE, "another")
    core.take_action()
    core.set_group_rank(7)
    core.observe(replace(LARGE, phase="Closed", outcome=Outcome.COMPLETE.value))
    assert core.end_reason() == ""


def test_a_large_round_that_broke_before_its_leader_told_the_ranks_is_left() -> None:
    core = joined(LARGE, "other")
    core.take_action()
    core.observe(replace(LARGE, phase="Broken"))
    assert core.end_reason()
    assert isinstance(core.take_action(), AnnounceAgain)
    assert core.announce("other-2", "h:1", False, 1).from_round == 1, "it may come from there"


def test_a_round_that_broke_before_it_was_entered_is_left() -> None:
    core = joined(replace(ROUND, phase="Broken"))
    assert isinstance(core.take_action(), AnnounceAgain)
    record = core.announce("mine-2", "h:1", False, 1)
    assert (record.from_job_uid, record.from_round) == ("job", 1)


def test_the_end_of_the_job() -> None:
    closed = replace(ROUND, phase=Phase.CLOSED.value, outcome=Outcome.COMPLETE.value, message="done")
    assert joined(closed, "third").take_action() == Stop(True, "done")
    assert joined(replace(closed, outcome="Failed"), "third").take_action() == Stop(False, "done")


def test_over_if_and_only_if_the_record_says_so() -> None:
    """I5 and I8: no record, an unknown phase and a good end change nothing for a running round."""
    for harmless in (
        ROUND,
        replace(ROUND, phase="SomethingNew"),
        replace(ROUND, phase="Closed", outcome="Complete"),
    ):
        core = running()
        core.observe(harmless)
        assert core.end_reason() == ""
    for end in (
        replace(ROUND, phase="Broken", cause="PodLost", message="gone"),
        replace(ROUND, number=2, member_ids=("x", "y")),
        replace(ROUND, phase="Closed", outcome="Failed"),
    ):
        core = running()
        core.observe(end)
        assert core.end_reason()


@pytest.mark.parametrize("phase", ["Active", "Broken", "Closed"])
def test_another_round_of_its_number_ends_the_round(phase: str) -> None:
    """A user deleted the record while nothing showed this member: its number came again."""
    core = running()
    core.observe(replace(ROUND, phase=phase, outcome=Outcome.COMPLETE.value, nonce="another"))
    assert core.end_reason() == "another round 1 was formed: the record of this one was lost"


def test_the_record_never_goes_back() -> None:
    core = running()
    core.observe(replace(ROUND, number=2, member_ids=("x", "y")))
    assert not core.observe(ROUND)
    assert core.end_reason()


def test_a_job_made_again_is_another_job_and_the_old_one_does_not_come_back() -> None:
    core = running()
    assert core.observe(replace(ROUND, job_uid="job-2", number=0, phase="Broken", member_ids=()))
    assert "created again" in core.end_reason()
    assert not core.observe(replace(ROUND, number=9))


def test_a_pod_made_for_one_job_ignores_another_of_the_same_name() -> None:
    core = joined(uid="job")
    assert not core.observe(replace(ROUND, job_uid="job-2"))
    assert core.observe(ROUND)


orders = st.tuples(st.integers(1, 4), st.sampled_from(["Active", "Unknown", "Broken"]))


@given(st.lists(orders, max_size=12))
def test_lost_late_and_repeated_records_end_in_the_newest(seen: list[tuple[int, str]]) -> None:
    """I1 for readers: whatever a lagging or restarted watch brings, the maximum of (round, phase) counts."""
    core = joined(new_id="nobody")
    for number, phase in seen:
        core.observe(replace(ROUND, number=number, phase=phase))
    if seen:
        newest = max(replace(ROUND, number=n, phase=p).order for n, p in seen)
        assert core.latest is not None
        assert core.latest.order == newest
    else:
        assert core.latest is None


def test_success_names_the_round_and_keeps_the_id() -> None:
    core = running()
    record = core.succeeded()
    assert record is not None
    assert (record.id, record.state, record.from_round) == ("mine", "Succeeded", 1)
    assert core.leaving() is None


def test_asking_what_comes_next_changes_nothing() -> None:
    core = joined(ROUND)
    assert isinstance(core.next_action(), Enter)
    assert core.membership is None
    core.observe(replace(ROUND, phase="Broken"))
    assert isinstance(core.next_action(), AnnounceAgain)
    assert core.membership is None
    assert core.announce("mine-2", "h:1", False, 1).from_round == 0, "it was asked, and did not go"
