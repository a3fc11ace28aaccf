"""The status stays within its budget at any size that the definition allows, and says what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from elasticjob_operator.plan.charges.backoff import MAX_SLOT_BACKOFFS
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import Job, JobSpec, Limit, Now, Observed, Pod
from elasticjob_operator.plan.state.restart_accounts import MAX_CHARGES, MAX_OLDER, Account, Charge
from elasticjob_operator.plan.state.status import JobStatus
from elasticjob_operator.plan.state.status_size import MAX_STATUS_BYTES, size, trim
from tests.full_status import MEMBERS, NAME, WALL, full


def in_etcd(status: JobStatus) -> int:
    """As the API server writes it: UTF-8, with <, > and & escaped."""
    text = json.dumps(status_json.dump(status), separators=(",", ":"), ensure_ascii=False)
    return len(text.encode()) + 5 * sum(text.count(sign) for sign in "<>&")


@pytest.mark.parametrize("members", [400, 1_000, 2_370, MEMBERS])
# shows: the status of a job of thousands would be larger than 1.1 MiB, or the object larger ...
def test_every_list_is_full(members: int) -> None:
    status = full(members)
    trimmed = trim(status)
    assert in_etcd(trimmed) <= size(trimmed) <= MAX_STATUS_BYTES
    assert trim(trimmed) == replace(trimmed, omitted=trim(trimmed).omitted), "nothing more goes"
    for before, after in zip(status.members(), trimmed.members(), strict=True):
        assert (before.id, before.pod_name, before.pod_uid) == (after.id, after.pod_name, after.pod_uid)
        assert (before.slot, before.group_rank, before.state) == (after.slot, after.group_rank, after.state)
        if members < MEMBERS:
            assert bool(before.message) == bool(after.message), "that there is one decides"
    assert trimmed.attempts == status.attempts
    assert trimmed.charged_pods == status.charged_pods, "each end is charged once"
    assert trimmed.current_round.nonce == status.current_round.nonce
    assert [a.used for a in trimmed.accounts] == [a.used for a in status.accounts]
    assert status_json.parse(status_json.dump(trimmed)) == trimmed


def test_it_says_what_is_left_out_and_leaves_small_ones_alone() -> None:
    said = trim(full(MEMBERS)).omitted
    assert said.startswith(
        "left out to keep the status within 1.1 MiB: nodes and messages of waiting participants; "
    )
    small = full(10)
    assert trim(small) == small
    usual = replace(
        full(1_000),
        participants=tuple(replace(m, message="", node_name="node-a") for m in full(1_000).members()),
    )
    assert trim(usual) == usual


def test_a_smaller_budget_takes_more() -> None:
    sizes = [
        in_etcd(trim(full(300), budget))
        for budget in (MAX_STATUS_BYTES, MAX_STATUS_BYTES // 4, MAX_STATUS_BYTES // 16)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_the_planner_goes_on_from_what_is_left() -> None:
    """The members of a broken round of 5,000 that have all been lost are replaced."""
    spec = JobSpec(replicas=MEMBERS, template={}, application=Limit())
    job = Job("default", NAME, "uid", 7, spec)
    status = replace(trim(full()), charged_pods=())  # which were no members
    pods = tuple(
        Pod(m.pod_name, m.pod_uid, slot=m.slot, attempt=998, node="n", running=True, ip="::1")
        for m in status.members()
    )
    decided = plan(job, status, Observed(pods=pods), Now(WALL, 1.0, "nonce"), {})
    assert size(decided.status) <= MAX_STATUS_BYTES
    assert decided.status.attempts.count(999) >= MEMBERS - MAX_SLOT_BACKOFFS, (
        "some slots wait after early ends"
    )
    again = plan(job, decided.status, Observed(pods=pods), Now(WALL, 1.1, "nonce"), decided.timers)
    assert again.status == decided.status, "what is left out makes no news"


def test_all_charges_count_and_the_newest_are_listed() -> None:
    account = Account("application", 10_000, 3_600)
    for n in range(5_000):
        account = account.charged(Charge(WALL + timedelta(seconds=n), n))
    assert account.used == 5_000
    assert [c.round for c in account.charges] == list(range(5_000 - MAX_CHARGES, 5_000))
    assert len(account.older_charges) <= MAX_OLDER
    now = WALL + timedelta(seconds=5_000)
    inside = account.since(now - timedelta(seconds=3_600)).used
    assert 3_599 <= inside <= 3_599 + 36, "a hundredth of the window late at most"
    assert account.since(now).used == 0


def test_a_window_that_comes_later_or_grows_merges_what_is_too_much() -> None:
    account = Account("application")
    for n in range(500):
        account = account.charged(Charge(WALL + timedelta(hours=n), n))
    assert (account.used, len(account.older_charges)) == (500, MAX_OLDER)
