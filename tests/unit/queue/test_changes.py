"""What is written into the Workloads of a job in a queue: quota follows pods, never the other way round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob_operator.plan.queue.workloads import pieces
from tests.unit.queue.words import JOB, WAITS, WHOLE, base, evicted, extra, job, wanted


def test_the_base_comes_first_and_alone() -> None:
    assert wanted(()) == [("Create", "base", 4)]
    assert wanted((base(**WAITS),)) == []
    assert wanted((base(admitted=False),)) == [], "reserved, and its admission checks have not answered"


def test_extras_are_made_once_the_base_is_admitted_with_a_lower_priority() -> None:
    assert wanted((base(),)) == [
        ("Create", "x0", 1, 99),
        ("Create", "x1", 1, 99),
        ("Create", "x2", 2, 99),
    ]
    assert wanted(WHOLE) == []


@pytest.mark.parametrize("pods", range(1, 70))
def test_pieces_make_up_any_number_and_are_few(pods: int) -> None:
    sizes = pieces(pods)
    sums = {0}
    for size in sizes:
        sums |= {one + size for one in sums}
    assert sums == set(range(pods + 1))
    assert len(sizes) <= pods.bit_length() + 1
    assert sizes[:4] == [1, 1, 2, 4][: len(sizes)] or pods < 8


def test_a_job_of_a_fixed_size_has_all_in_its_base() -> None:
    fixed = job(min_replicas=None)
    assert wanted((), fixed) == [("Create", "base", 8)]
    assert wanted((base(),), fixed) == [("Create", "x0", 4, 99)], "scaled up: in one step"


def test_spares_are_extras() -> None:
    assert wanted((base(),), job(replicas=4, spares=2)) == [("Create", "x0", 1, 99), ("Create", "x1", 1, 99)]


def test_extras_follow_the_class_of_the_base() -> None:
    """Kueue rewrites the priority of Workloads with a reference to the class, and an extra has none."""
    assert wanted((base(priority=2000), *WHOLE[1:])) == [
        ("Reprioritize", "x0", 1999),
        ("Reprioritize", "x1", 1999),
        ("Reprioritize", "x2", 1999),
    ]


# An eviction: drain, pods gone, then the quota


def test_an_extra_that_has_to_leave_keeps_its_quota_until_its_pods_have_gone() -> None:
    leaving = (*WHOLE[:2], evicted(WHOLE[2]), WHOLE[3])
    assert wanted(leaving, pods=8) == []
    assert wanted(leaving, pods=7) == [("Clear", "x1")]


def test_extras_are_alike_whichever_pod_went() -> None:
    """Quota goes back by number: two of three extras leave, one pod has gone."""
    leaving = (WHOLE[0], evicted(WHOLE[1]), evicted(WHOLE[2]), WHOLE[3])
    assert wanted(leaving, pods=7) == [("Clear", "x0")]
    assert wanted(leaving, pods=6) == [("Clear", "x0"), ("Clear", "x1")]


def test_what_was_cleared_is_not_cleared_again_although_it_stays_evicted() -> None:
    cleared = replace(evicted(WHOLE[1]), reserved=False, admitted=False)
    assert wanted((WHOLE[0], cleared, *WHOLE[2:]), pods=7) == []


def test_admitted_without_quota_counts_for_nothing() -> None:
    """The condition Admitted may stay when the quota is gone."""
    assert wanted((base(reserved=False), *WHOLE[1:]), pods=8) == []
    assert not base(reserved=False).live


def test_an_extra_of_several_pods_that_was_preempted_comes_back_in_pieces() -> None:
    """Three of its four pods may have room, and whole it would wait for all."""
    large = extra(0, 4)
    assert wanted((base(), evicted(large)), pods=8) == []
    assert wanted((base(), evicted(large)), pods=5) == []
    released = wanted((base(), evicted(large)), pods=4)
    assert released == [
        ("Release", "x0"),
        ("Create", "x1", 1, 99),
        ("Create", "x2", 1, 99),
        ("Create", "x3", 2, 99),
    ]


@pytest.mark.parametrize("reason", ["PodsReadyTimeout", "ClusterQueueStopped", "Deactivated"])
def test_an_eviction_whose_end_kueue_decides_is_cleared_whole(reason: str) -> None:
    """Its back-off is in the status of the Workload."""
    assert wanted((base(), evicted(extra(0, 4), reason)), pods=4) == [("Clear", "x0")]


# The base goes


@pytest.mark.parametrize(
    "gone",
    [
        evicted(base()),
        evicted(base(active=False), "Deactivated"),
        base(deleting=True),
        base(reserved=False, admitted=False),
    ],
    ids=["preempted", "deactivated", "deleted", "cleared before its extras"],
)
def test_without_its_base_no_extra_stays(gone: object) -> None:
    """Kueue may leave them admitted: it fills back after a preemption, and deactivates one alone."""
    assert isinstance(gone, type(base()))
    left = (gone, *WHOLE[1:])
    assert wanted(left, pods=8) == []
    end = [change for change in wanted(left, pods=0) if change[1] != "base"]
    assert end == [("Release", "x0"), ("Release", "x1"), ("Release", "x2")]


def test_the_base_is_cleared_after_its_extras_were_deleted() -> None:
    left = (evicted(base()), *WHOLE[1:])
    assert wanted(left, pods=0)[-1] == ("Clear", "base")
    assert wanted((evicted(base()),), pods=1) == [], "a pod still ends"
    assert wanted((evicted(base()),), pods=0) == [("Clear", "base")]
    assert wanted((evicted(base(count=2)), extra(0, 4)), pods=3) == [], "not before an extra that stays"


def test_extras_go_as_the_pods_of_a_stopped_job_end() -> None:
    left = (evicted(base()), *WHOLE[1:])
    assert wanted(left, pods=7) == [("Release", "x0")]
    assert wanted(left, pods=5) == [("Release", "x0"), ("Release", "x1")]


def test_a_base_that_someone_deletes_is_let_go_when_the_pods_have_ended_and_made_again() -> None:
    assert wanted((base(deleting=True),), pods=4) == []
    assert wanted((base(deleting=True),), pods=0) == [("Release", "base")]
    assert wanted((base(deleting=True, kept=False),), pods=0) == []


# What the user changes


def test_scaled_down_what_waits_goes_before_what_is_admitted() -> None:
    waits = extra(2, 2, **WAITS)
    assert wanted((*WHOLE[:3], waits), job(replicas=6), pods=6) == [("Release", "x2")]
    assert wanted(WHOLE, job(replicas=6), pods=8) == [], "its pods are still there"
    assert wanted(WHOLE, job(replicas=6), pods=6) == [("Release", "x2")]


def test_scaled_down_by_less_than_an_extra_it_gets_smaller() -> None:
    large = (base(), extra(0, 4))
    assert wanted(large, job(replicas=7), pods=8) == []
    assert wanted(large, job(replicas=7), pods=7) == [("Resize", "x0", 3)]
    waiting = (base(), extra(0, 4, **WAITS))
    assert wanted(waiting, job(replicas=7), pods=4) == [("Release", "x0")]


def test_scaled_down_below_its_base_the_base_gets_smaller() -> None:
    small = job(replicas=3, min_replicas=2)
    assert wanted((base(),), small, pods=4) == []
    assert wanted((base(),), small, pods=3) == [("Resize", "base", 3)]


def test_a_base_that_waits_for_what_is_no_longer_asked_is_made_anew() -> None:
    waits = base(**WAITS)
    assert wanted((waits,), job(min_replicas=2)) == [("Release", "base")]
    assert wanted((waits,), job(queue="b")) == [("Release", "base")]
    assert wanted((waits,), job(queue=None)) == [("Release", "base")]
    assert wanted((base(),), job(queue="b", replicas=4)) == [], "of one that is admitted nothing may change"


def test_suspended_all_goes_when_the_pods_have_ended() -> None:
    suspended = job(suspend=True)
    assert wanted((), suspended) == []
    assert wanted(WHOLE, suspended, pods=8) == []
    assert wanted(WHOLE, suspended, pods=0) == [
        ("Release", "x0"),
        ("Release", "x1"),
        ("Release", "x2"),
        ("Release", "base"),
    ]


def test_at_the_end_the_base_stays_as_a_record() -> None:
    assert wanted(WHOLE, pods=1, outcome="Complete") == [
        ("Release", "x0"),
        ("Release", "x1"),
        ("Release", "x2"),
    ]
    assert wanted((base(),), pods=1, outcome="Complete") == []
    assert wanted((base(),), outcome="Failed") == [("Finish", "base", "Failed")]
    assert wanted((base(finished=True),), outcome="Failed") == [("Finish", "base", "Failed")], "finalizer"
    assert wanted((base(finished=True, kept=False),), outcome="Failed") == []
    assert wanted((), outcome="Complete") == []


# PodsReady


def test_each_extra_is_ready_by_its_own_pods() -> None:
    """A pod that never joins costs the extra that it makes up, and nothing else."""
    assert wanted(WHOLE, joined=3) == []
    assert wanted(WHOLE, joined=4) == [("SetReady", "base")]
    ready = (base(ready=True), extra(0, 1, ready=True), WHOLE[2], WHOLE[3])
    assert wanted(ready, joined=5) == []
    assert wanted(ready, joined=6) == [("SetReady", "x1")]
    assert wanted(ready, joined=8) == [("SetReady", "x1"), ("SetReady", "x2")]


def test_an_extra_that_is_given_back_is_not_said_to_be_ready() -> None:
    """The Workload is gone when the second write comes."""
    ready = (base(ready=True), extra(0, 1))
    assert wanted(ready, job(replicas=4), joined=5, pods=4) == [("Release", "x0")]


def test_an_extra_that_leaves_is_not_ready() -> None:
    ready = (base(ready=True), evicted(extra(0, 1)), *(replace(one, ready=True) for one in WHOLE[2:]))
    assert wanted(ready, pods=8, joined=8) == []


def test_what_has_lost_a_pod_is_ready_no_more_the_last_extra_first() -> None:
    """Kueue then counts its recoveryTimeout. A round that ends for a moment is no loss."""
    ready = tuple(replace(one, ready=True) for one in WHOLE)
    assert wanted(ready, joined=8, pods=8) == []
    assert wanted(ready, joined=0, running=8, pods=8) == [], "the next round forms"
    assert wanted(ready, joined=7, running=7, pods=8) == [("SetUnready", "x2")]
    assert wanted(ready, joined=0, running=5, pods=8) == [("SetUnready", "x1"), ("SetUnready", "x2")]
    assert wanted(ready, joined=0, running=3, pods=8)[0] == ("SetUnready", "base")


def test_of_one_that_ends_slowly_it_is_not_said_in_turn_that_it_is_ready_and_that_it_is_not() -> None:
    """It is still a member of the round."""
    ready = tuple(replace(one, ready=True) for one in WHOLE[:3])
    assert wanted((*ready, WHOLE[3]), joined=8, running=7, pods=8) == []
    assert wanted((*ready, replace(WHOLE[3], ready=True)), joined=8, running=7, pods=8) == [
        ("SetUnready", "x2")
    ]


def test_ready_in_the_life_before_is_not_ready() -> None:
    """The condition survives another admission."""
    assert wanted((base(ready=True),), job(replicas=4), pods=0, running=0) == [("SetUnready", "base")]


def test_a_job_that_gets_smaller_lacks_no_pod() -> None:
    ready = tuple(replace(one, ready=True) for one in WHOLE)
    smaller = wanted(ready, job(replicas=6), pods=8, running=6, joined=6)
    assert smaller == []


def test_of_a_job_without_a_label_nothing_is_made() -> None:
    assert wanted((), job(queue=None)) == []
    assert JOB.queue is not None
