"""A pod that is judged by what was not heard of it: the shell is told, and looks at its Lease once more."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state.model import (
    Exit,
    Job,
    JobSpec,
    Now,
    Observed,
    Participant,
    Plan,
    Pod,
)
from elasticjob_operator.plan.state.status import JobStatus

JOB = Job("ns", "job", "uid-job", 1, JobSpec(replicas=2, template={}))
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def pod(slot: int) -> Pod:
    return Pod(f"job-{slot}-0", f"uid-{slot}", slot=slot, node="n", running=True, ip="10.0.0.1")


def lease(slot: int, silent: float = 0.0, from_round: int = 0) -> Participant:
    record = ParticipantRecord(
        f"id-{slot}-{from_round}",
        "Joining",
        "10.0.0.1:4000",
        from_round=from_round,
        from_job_uid="uid-job" if from_round else "",
        seen_round=from_round,
        seen_job_uid="uid-job" if from_round else "",
    )
    return Participant(f"job-{slot}-0", f"uid-{slot}", record, silent=silent)


def planned(
    before: Plan | None, at: float, *leases: Participant, pods: tuple[Pod, ...] = (), job: Job = JOB
) -> Plan:
    seen = Observed(
        pods or (pod(0), pod(1)), {one.pod: one for one in leases}, before.record if before else None
    )
    status = before.status if before else JobStatus(attempts=(0, 0))
    now = Now(BEGAN + timedelta(seconds=at), at, "nonce")
    return plan(job, status, seen, now, before.timers if before else {})


def broken() -> Plan:
    """Round 1 of two has just ended, since the container of job-1-0 did; job-0-0 is to rejoin."""
    running = planned(planned(None, 0.0, lease(0), lease(1)), 1.0, lease(0), lease(1))
    assert running.status.current_round.number == 1
    ended = replace(pod(1), ended=True, running=False)
    told = planned(running, 2.0, lease(0), lease(1), pods=(pod(0), ended))
    return planned(told, 3.0, lease(0), lease(1), pods=(pod(0), ended))


def test_a_member_that_does_not_rejoin() -> None:
    before = broken()
    still = planned(before, 40.0, lease(0), pods=(pod(0),))
    assert not still.judged_unheard
    late = planned(still, 50.0, lease(0), pods=(pod(0),))
    assert late.judged_unheard == ("job-0-0",)
    assert [m.state for m in late.status.members() if m.pod_name == "job-0-0"] == ["Lost"]
    heard = planned(still, 50.0, lease(0, from_round=1), pods=(pod(0),))
    assert not heard.judged_unheard, "with what a list has brought"
    assert not planned(late, 51.0, lease(0), pods=(pod(0),)).judged_unheard, "once"


def test_a_leader_that_reports_nothing() -> None:
    running = planned(planned(None, 0.0, lease(0), lease(1)), 1.0, lease(0), lease(1))
    late = planned(running, 32.0, lease(0), lease(1))
    assert (late.status.current_round.phase, late.judged_unheard) == ("Broken", ("job-0-0",))


def test_a_pod_that_ends_well_and_is_not_known_to_have_joined() -> None:
    first = planned(None, 0.0)
    ended = replace(pod(0), ended=True, running=False, exit=Exit(0))
    doubted = planned(first, 1.0, pods=(ended, pod(1)))
    assert not doubted.judged_unheard
    failed = planned(doubted, 10.0, pods=(ended, pod(1)))
    assert (failed.status.finished, failed.judged_unheard) == (True, ("job-0-0",))


def test_a_lease_whose_pod_is_not_known() -> None:
    first = planned(None, 0.0, lease(0), pods=(pod(1),))
    assert not first.judged_unheard
    assert planned(first, 11.0, lease(0), pods=(pod(1),)).judged_unheard == ("job-0-0",)


def test_who_waits_and_falls_silent_is_looked_at_again_when_it_is_replaced() -> None:
    first = planned(None, 0.0, lease(0))
    doubted = planned(first, 20.0, lease(0, silent=20.0))
    assert doubted.judged_silent == ("job-0-0",)
    assert not doubted.judged_unheard
    assert planned(doubted, 50.0, lease(0, silent=50.0)).judged_unheard == ("job-0-0",)


def test_those_who_are_waited_for_until_the_job_fails() -> None:
    job = replace(JOB, spec=replace(JOB.spec, idle_deadline=60))
    last = planned(None, 0.0, lease(0), job=job)
    for at in range(5, 65, 5):
        assert not last.judged_unheard
        last = planned(last, float(at), lease(0), job=job)
    assert last.status.finished
    assert last.judged_unheard == ("job-0-0", "job-1-0")
