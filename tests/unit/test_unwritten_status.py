"""What may be done while the status can't be written."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from elasticjob.contract.reports import RoundReport
from elasticjob_operator.plan.planner import plan_without_status_write
from elasticjob_operator.plan.state.model import CreatePod, Now, Observed
from tests.unit.test_judged_unheard import BEGAN, JOB, lease, planned, pod


def test_a_member_that_is_replaced_and_trains_on_may_write_its_lease() -> None:
    """Its node is about to go, its next pod is made already, and the round needs its workers until that has
    joined: without the right, it could not be heard of."""
    said = [lease(0), lease(1)]
    formed = planned(planned(None, 0.0, *said), 1.0, *said)
    said[0] = replace(said[0], report=RoundReport("nonce", established=True))
    running = planned(formed, 2.0, *said)
    pods = (replace(pod(0), notice="spot"), pod(1))
    replaced = planned(running, 3.0, *said, pods=pods)
    assert [a.name for a in replaced.actions if isinstance(a, CreatePod)] == ["job-0-1"]
    seen = Observed(pods, {one.pod: one for one in said}, replaced.record)
    now = Now(BEGAN + timedelta(seconds=4), 4.0, "nonce")
    decided = planned(replaced, 4.0, *said, pods=pods)
    unwritten = plan_without_status_write(JOB, replaced.status, seen, now, decided)
    assert unwritten.pod_names == decided.pod_names == {"job-0-0", "job-0-1", "job-1-0"}
