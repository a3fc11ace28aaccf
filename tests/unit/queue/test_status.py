"""Workloads as Kueue writes them, and what is written into their status. The objects were taken from one."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator.act import workload_status
from elasticjob_operator.observe.seen_workload import read_workload

NOW = "2026-11-28T10:00:00Z"
BEFORE = "2026-11-28T09:00:00Z"


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": BEFORE,
        "observedGeneration": 1,
    }


def raw(*conditions: dict[str, Any], admission: bool = True, **meta: Any) -> dict[str, Any]:
    labels = {
        "elasticjob.dev/job-name": "mnist",
        "kueue.x-k8s.io/job-uid": "uid",
        "elasticjob.dev/extra": "true",
    }
    assignment = {"name": "main", "count": 2, "flavors": {"cpu": "f", "memory": "f"}}
    status: dict[str, Any] = {"conditions": list(conditions)}
    if admission:
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    return {
        "metadata": {
            "namespace": "ns",
            "name": "mnist-uid-x0",
            "uid": "w",
            "generation": 3,
            "resourceVersion": "7",
            "labels": labels,
            "finalizers": ["elasticjob.dev/quota"],
            **meta,
        },
        "spec": {"queueName": "a", "priority": 99, "active": True, "podSets": [{"name": "main", "count": 2}]},
        "status": status,
    }


ADMITTED = (condition("QuotaReserved", "True", "QuotaReserved"), condition("Admitted", "True", "Admitted"))
PREEMPTED = condition("Evicted", "True", "Preempted", "Preempted to accommodate a workload")


def test_an_admitted_one() -> None:
    seen = read_workload(raw(*ADMITTED))
    assert (seen.job, seen.job_uid, seen.version) == ("mnist", "uid", 7)
    one = seen.workload
    assert (one.extra, one.count, one.priority, one.flavors, one.live) == (True, 2, 99, ("f",), True)
    assert one.kept


def test_one_that_is_evicted_keeps_quota_and_the_condition_admitted() -> None:
    one = read_workload(raw(*ADMITTED, PREEMPTED)).workload
    assert (one.reserved, one.admitted, one.live, one.must_leave) == (True, True, False, True)
    assert one.message == "Preempted to accommodate a workload"


def test_one_that_was_cleared_stays_evicted_and_need_not_leave() -> None:
    waits = condition("QuotaReserved", "False", "Pending", "1 more needed")
    one = read_workload(raw(waits, PREEMPTED, admission=False)).workload
    assert (one.evicted, one.must_leave, one.live) == ("Preempted", False, False)
    assert one.message == "1 more needed"


def test_what_admission_checks_ask_of_pods() -> None:
    found = raw(*ADMITTED)
    update = {"name": "main", "nodeSelector": {"class": "queued"}}
    found["status"]["admissionChecks"] = [{"name": "prov", "podSetUpdates": [update, {"name": "main"}]}]
    assert read_workload(found).workload.updates == '[{"nodeSelector": {"class": "queued"}}]'


@pytest.mark.parametrize("spoilt", [{}, {"spec": {"podSets": "x"}}, {"status": {"conditions": [1]}}])
def test_any_content_can_be_read(spoilt: dict[str, Any]) -> None:
    read_workload({"metadata": {"name": "x"}, **spoilt})


def by_type(status: dict[str, Any] | None) -> dict[str, tuple[str, str]]:
    assert status is not None
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


@pytest.mark.parametrize(
    ("reason", "back"),
    [
        ("Preempted", "True"),
        ("NodeFailures", "True"),
        ("PodsReadyTimeout", "False"),
        ("ClusterQueueStopped", "False"),
        ("Deactivated", "False"),
    ],
)
def test_one_write_clears_everything(reason: str, back: str) -> None:
    """PodsReady, too: with its old time Kueue would evict it again as soon as it is admitted."""
    stale = condition("PodsReady", "False", "WaitForRecovery")
    cleared = workload_status.cleared(raw(*ADMITTED, condition("Evicted", "True", reason), stale), NOW)
    assert cleared is not None
    assert cleared["admission"] is None
    assert by_type(cleared) == {
        "Evicted": ("True", reason),
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Requeued": (back, reason),
        "PodsReady": ("False", "WaitForStart"),
    }
    times = {one["type"]: one["lastTransitionTime"] for one in cleared["conditions"]}
    assert times["QuotaReserved"] == NOW
    assert times["PodsReady"] == times["Evicted"] == BEFORE


def test_nothing_is_cleared_twice_or_without_being_asked() -> None:
    assert workload_status.cleared(raw(*ADMITTED), NOW) is None
    assert workload_status.cleared(raw(*ADMITTED, PREEMPTED, admission=False), NOW) is None
    assert (
        workload_status.cleared(raw(*ADMITTED, condition("Evicted", "False", "QuotaReserved")), NOW) is None
    )


def test_only_one_with_quota_is_ready() -> None:
    assert by_type(workload_status.ready(raw(*ADMITTED), NOW))["PodsReady"] == ("True", "Started")
    assert workload_status.ready(raw(admission=False), NOW) is None


def at(condition: dict[str, Any], time: str) -> dict[str, Any]:
    return {**condition, "lastTransitionTime": time}


def test_one_that_has_lost_a_pod_waits_for_recovery_and_recovers() -> None:
    started = at(condition("PodsReady", "True", "Started"), NOW)
    lost = workload_status.unready(raw(*ADMITTED, started), NOW)
    assert by_type(lost)["PodsReady"] == ("False", "WaitForRecovery")
    assert lost is not None
    (said,) = [one for one in lost["conditions"] if one["type"] == "PodsReady"]
    assert said["lastTransitionTime"] == NOW, "from when Kueue counts its recoveryTimeout"
    assert workload_status.unready({**raw(), "status": {**raw()["status"], **lost}}, NOW) is None
    back = workload_status.ready({**raw(), "status": {**raw()["status"], **lost}}, NOW)
    assert by_type(back)["PodsReady"] == ("True", "Recovered")


def test_ready_before_the_last_admission_is_not_started() -> None:
    """With WaitForRecovery Kueue would evict it sooner than it has to start."""
    admitted = (ADMITTED[0], at(ADMITTED[1], NOW))
    stale = condition("PodsReady", "True", "Started")
    assert by_type(workload_status.unready(raw(*admitted, stale), NOW))["PodsReady"] == (
        "False",
        "WaitForStart",
    )
    assert workload_status.unready(raw(stale, admission=False), NOW) is None


def test_the_end_of_the_job() -> None:
    done = workload_status.finished("Complete", "all succeeded")(raw(*ADMITTED), NOW)
    assert by_type(done)["Finished"] == ("True", "Succeeded")
    assert by_type(workload_status.finished("Failed", "")(raw(*ADMITTED), NOW))["Finished"] == (
        "True",
        "Failed",
    )
