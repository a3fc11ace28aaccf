"""How many pods of a job in a queue may live, and the words for why."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.rounds.sizes import Sizes
from elasticjob_operator.plan.queue.grants import grant, granted, is_queued, unseen
from elasticjob_operator.plan.state.grant import Grant
from tests.unit.queue.words import JOB, WAITS, WHOLE, base, evicted, extra, job


def limited(*workloads: object) -> tuple[bool, int, int | None, int]:
    spec = granted(JOB, grant(JOB, tuple(workloads))).spec  # type: ignore[arg-type]
    return spec.suspend, spec.replicas, spec.min_replicas, spec.spares


def test_no_pod_before_the_base_is_admitted() -> None:
    assert limited()[0]
    assert limited(base(**WAITS))[0]
    assert limited(base(admitted=False))[0]
    assert limited(base(reserved=False), *WHOLE[1:])[0], "Admitted counts only with quota"
    assert limited(evicted(base()), *WHOLE[1:])[0]
    assert limited(base(deleting=True))[0]


def test_as_many_pods_as_are_admitted() -> None:
    assert limited(*WHOLE) == (False, 8, 4, 0)
    assert limited(base()) == (False, 4, 4, 0)
    assert limited(base(), extra(0, 1, **WAITS), extra(1, 1), extra(2, 2)) == (False, 7, 4, 0)
    assert limited(*WHOLE[:3], evicted(WHOLE[3])) == (False, 6, 4, 0)
    assert limited(*WHOLE, extra(3, 4)) == (False, 8, 4, 0), "never more than are asked for"


def test_what_has_quota_is_counted_apart_from_what_is_asked_for() -> None:
    """An extra leaves just as its user makes the job smaller: its pod has no quota, whatever was asked."""
    smaller = job(replicas=7)
    assert grant(smaller, WHOLE).quota == 8
    assert grant(smaller, (*WHOLE[:3], evicted(WHOLE[3]))).quota == 6
    assert unseen(JOB, 7).quota == 7, "no pod ends because Workloads cannot be seen"


def test_replicas_come_before_spares() -> None:
    asked = job(replicas=5, spares=2)
    given = granted(asked, grant(asked, (base(), extra(0, 1), extra(1, 1)))).spec
    assert (given.replicas, given.spares) == (5, 1)


def test_a_suspended_job_is_its_users_affair() -> None:
    suspended = job(suspend=True)
    assert granted(suspended, grant(suspended, ())) is suspended


def test_which_jobs_are_queued() -> None:
    assert is_queued(JOB, ())
    assert not is_queued(job(queue=None), ())
    assert is_queued(job(queue=None), WHOLE), (
        "the label was taken off: it stays until it is suspended or ends"
    )
    assert not is_queued(job(template=None), ()), "pods of others may be in a queue of their own"


def test_while_workloads_cannot_be_seen_no_job_starts_and_none_stops() -> None:
    assert granted(JOB, unseen(JOB, 0)).spec.suspend
    going = granted(JOB, unseen(JOB, 6))
    assert (going.spec.suspend, going.spec.replicas) == (False, 6)
    assert going.grant is not None
    assert not going.grant.placed, "but it makes no pod"
    assert going.grant.sentence == (
        "queue a cannot be asked: the operator cannot list workloads of kueue.x-k8s.io/v1beta2"
    )


def test_what_the_queue_waits_for() -> None:
    short = "couldn't assign flavors to pod set main: insufficient unused quota for cpu, 1 more needed"
    said = {
        (): "waiting for its place in queue a: its Workload is not made yet",
        (base(**WAITS),): "waiting for queue a to admit 4 pods",
        (base(**WAITS, message=short),): f"waiting for queue a to admit 4 pods: {short}",
        (
            base(admitted=False),
        ): "queue a has reserved quota for 4 pods; waiting for the queue's admission checks",
        (evicted(base(message="Preempted to accommodate b")),): (
            "queue a takes back the quota of its 4 pods (Preempted: Preempted to accommodate b)"
        ),
        (base(**WAITS, active=False),): (
            "queue a does not admit it while spec.active of its Workload mnist-01234567 is false"
        ),
        (base(deleting=True),): (
            "its Workload mnist-01234567 in queue a is being deleted; it is made again when its pods have "
            "ended"
        ),
        WHOLE: "",
        (base(), extra(0, 4, **WAITS, message=short)): f"queue a admits 4 of 8 pods: {short}",
        (*WHOLE[:3], replace(evicted(WHOLE[3]), message="reclaimed")): (
            "queue a takes back the quota of 2 pods of 8 (Preempted: reclaimed)"
        ),
    }
    assert {found: grant(JOB, found).sentence for found in said} == said


def test_why_workloads_cannot_be_written_is_said_while_the_job_waits() -> None:
    assert grant(JOB, (), "they cannot be written: no") == Grant(
        0, "waiting for its place in queue a: its Workload is not made yet; they cannot be written: no"
    )


def test_a_job_of_some_sizes_trains_with_the_largest_for_which_pods_are_admitted() -> None:
    asked = job(replicas=8, min_replicas=2, sizes=Sizes((2, 4, 8)))
    spec = granted(asked, grant(asked, (base(count=2), extra(1, 4)))).spec
    assert (spec.replicas, spec.min_replicas, spec.spares) == (4, 2, 2), "6 pods may live: two stand by"
    assert (spec.pods, spec.beyond_size) == (6, 2)
    spec = granted(asked, grant(asked, (base(count=2),))).spec
    assert (spec.replicas, spec.min_replicas, spec.pods) == (2, 2, 2)


def test_a_job_of_a_fixed_size_has_no_size_between_what_was_admitted_first_and_what_it_asks_for() -> None:
    asked = job(replicas=8, min_replicas=None, spares=1)
    for quota in ((), (extra(0, 1),), (extra(0, 1), extra(1, 3))):
        given = grant(asked, (base(count=3), *quota, extra(9, 2, **WAITS)))
        assert granted(asked, given).spec.replicas == 3
        said = "; without minReplicas the job has 3 members until all are admitted"
        assert given.sentence.endswith(said) is bool(quota), "where 3 are admitted that is said anyway"
    whole = granted(asked, grant(asked, (base(count=3), extra(0, 5)))).spec
    assert (whole.replicas, whole.spares) == (8, 0)
    smaller = job(replicas=2, min_replicas=None)
    assert granted(smaller, grant(smaller, (base(count=3),))).spec.replicas == 2
