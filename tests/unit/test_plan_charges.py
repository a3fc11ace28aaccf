"""What the accounts say of very many pods: more than a list of charges keeps."""

from __future__ import annotations

from elasticjob_operator.plan.status import MAX_CHARGES
from tests.scenarios.world import World


def test_more_pods_end_before_joining_than_charges_are_kept() -> None:
    """The oldest charges leave the list at once; their pods are still there, and are not charged again."""
    w = World()
    count = MAX_CHARGES + 50
    w.do(f"job replicas={count} min=1 start_timeout=1000")
    w.make_passes()
    for name in list(w.pods):
        w.do(f"run {name}")
        w.do(f"exit {name} 1")
    w.make_passes()
    assert w.status.restarts == count
    w.do(f"job replicas={count + 1} min=1")
    w.make_passes()
    assert w.status.restarts == count
