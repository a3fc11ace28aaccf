"""What the accounts say of very many pods: more than a list of charges keeps."""

from __future__ import annotations

from elasticjob_operator.plan.state.restart_accounts import MAX_CHARGES
from tests.scenarios.world import World


def test_more_pods_end_before_joining_than_charges_are_kept() -> None:
    """The oldest charges leave the list at once; their pods are still there, and are not charged again. All
    are of one attempt, which counts once."""
    count = MAX_CHARGES + 50
    w = World().play(f"job replicas={count} min=1 initial_last_call_timeout=1000")
    for name in list(w.pods):
        w.do(f"run {name}")
        w.do(f"exit {name} 1")
    w.make_passes()
    assert w.status.restarts == 1
    before = w.status.accounts
    w.play(f"job replicas={count + 1} min=1")
    assert (w.status.restarts, w.status.accounts) == (1, before)


def test_more_failed_pods_are_deleted_than_charges_are_kept() -> None:
    """By a user, at once: each slot has its pause all the same, and its next pod another name."""
    w = World()
    count = MAX_CHARGES + 10
    w.do(f"job replicas={count} min=1 initial_last_call_timeout=1000")
    w.play("limit application none")
    first = list(w.pods)
    for name in first:
        w.do(f"run {name}")
        w.do(f"exit {name} 1")
    w.make_passes()
    for name in first:
        w.do(f"gone {name}")
    w.make_passes()
    assert not w.pods
    w.play("wait 1")
    assert set(w.pods) == {f"mnist-{slot}-1" for slot in range(count)}
    assert w.status.restarts == 1


def test_a_limit_counts_more_charges_than_are_listed() -> None:
    limit = MAX_CHARGES + 10
    w = World().play(f"job replicas=1 min=1 application={limit}")
    for attempt in range(limit + 1):
        assert not w.status.finished
        w.do(f"run mnist-0-{attempt}")
        w.play(f"exit mnist-0-{attempt} 1", "wait 60")
    failed = w.status.condition("Failed")
    assert failed is not None
    assert failed.reason == "ApplicationRestartsExhausted"
    assert f"allows {limit} restarts within 3600 s, but {limit + 1} were needed" in failed.message


def test_a_charge_names_both_ends_of_a_path_with_the_names_that_clouds_give() -> None:
    first, second = (
        f"gke-research-a100-spot-pool-7f3c92d1-{zone}.c.research-project.internal" for zone in "ab"
    )
    w = World().play("job replicas=2 min=1")
    w.do(f"start mnist-0-0 node={first}")
    w.do(f"start mnist-1-0 node={second}")
    w.play("wait 1", "establish", "wait 60", "report mnist-0-0 silent=mnist-1-0", "join mnist-0-0 mnist-1-0")
    (charge,) = [charge for account in w.status.accounts for charge in account.charges]
    assert charge.message.startswith(f"mnist-1-0 on node {second} (group rank 1) was unreachable: ")
    assert charge.message.endswith(f", as the leader mnist-0-0 on node {first} reports")
