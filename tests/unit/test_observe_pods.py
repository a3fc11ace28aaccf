"""What the planner is shown of a pod: containers, exits, reasons, and whether it is the job's."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from elasticjob.contract.names import JOB_LABEL
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import ResumedReport, StartsReport
from elasticjob.contract.text import last_words
from elasticjob_operator.observe.removed_pods import KEPT_SECONDS, MOST, RemovedPods
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.observe.seen_pod import read_pod
from elasticjob_operator.plan.state.model import Exit, Pod
from tests.unit.observed import FOREIGN, TEMPLATED, Scene, raw_pod, status


def test_a_running_pod() -> None:
    scene = Scene()
    scene.pod()
    assert scene.only() == Pod(
        name="job-0-0", uid="uid-job-0-0", slot=0, attempt=0, node="n1", ip="10.0.0.1", running=True
    )


@pytest.mark.parametrize(
    ("statuses", "running"),
    [
        (None, True),
        ([status("main", running={})], True),
        ([status("main", waiting={"reason": "ContainerCreating"})], False),
        ([status("main", terminated={"exitCode": 0}), status("sidecar", running={})], False),
        ([status("main", running={}), status("sidecar", terminated={"exitCode": 1})], True),
    ],
)
def test_running_is_the_training_container(statuses: list[Any] | None, running: bool) -> None:
    scene = Scene()
    scene.pod(status={"containerStatuses": statuses} if statuses else {})
    assert scene.only().running is running


def test_a_pending_pod_does_not_run() -> None:
    scene = Scene()
    scene.pod(status={"phase": "Pending"})
    assert not scene.only().running


def test_exit_is_the_training_containers_though_a_sidecar_goes_on() -> None:
    scene = Scene()
    ended = status("main", terminated={"exitCode": 137, "reason": "OOMKilled", "message": "too much"})
    scene.pod(status={"containerStatuses": [status("sidecar", running={}), ended]})
    assert scene.only().exit == Exit(137, "OOMKilled", "too much")
    assert not scene.only().ended


# shows: a container survives that one of its processes is killed for memory, and ends later ...
def test_a_container_that_ended_well_was_not_out_of_memory() -> None:
    """containerd's mark stays from a worker that was killed earlier."""
    scene = Scene()
    ended = status("main", terminated={"exitCode": 0, "reason": "OOMKilled"})
    scene.pod(status={"phase": "Succeeded", "containerStatuses": [ended]})
    assert scene.only().exit == Exit(0, "Completed")


@pytest.mark.parametrize(("oom_kills", "reason"), [(0, "OOMKilled"), (1, "Error")])
# shows: a container survives that one of its processes is killed for memory, and ends later ...
def test_a_mark_that_the_agent_has_outlived_says_nothing_of_its_end(oom_kills: int, reason: str) -> None:
    scene = Scene()
    record = ParticipantRecord("id-1", "Joining", "10.0.0.1:4000", oom_kills=oom_kills)
    scene.lease(participant=record.dump())
    ended = status("main", terminated={"exitCode": 137, "reason": "OOMKilled"})
    scene.pod(status={"phase": "Failed", "containerStatuses": [ended]})
    assert scene.only().exit == Exit(137, reason)
    scene.cache.pods.remove("ns", "job-0-0", "uid-job-0-0", scene.tick())
    assert [pod.exit for pod in scene.observe().removed.values()] == [Exit(137, reason)], (
        "nor once it is gone"
    )


def test_the_end_of_a_container_s_log_and_when_that_was() -> None:
    scene = Scene()
    log = "Collecting torch\n  File \"a.py\"\nModuleNotFoundError: No module named 'numpy'\n-----\n"
    terminated = {"exitCode": 1, "reason": "Error", "message": log, "finishedAt": "2026-11-22T20:00:01Z"}
    scene.pod(status={"containerStatuses": [status("main", terminated=terminated)]})
    end = scene.only().exit
    assert end is not None
    assert end.message == "Collecting torch | File \"a.py\" | ModuleNotFoundError: No module named 'numpy'"
    assert end.finished == datetime(2026, 11, 22, 20, 0, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("finished", [None, "", "yesterday", 7, "2026-11-22T20:00:01"])
def test_a_time_that_is_none(finished: object) -> None:
    scene = Scene()
    terminated = {"exitCode": 1, "finishedAt": finished}
    scene.pod(status={"containerStatuses": [status("main", terminated=terminated)]})
    assert scene.only().exit == Exit(1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("=====\n\n", ""),
        ("one\ntwo", "one | two"),
        ("far too long for this\n12345678", "12345678"),
        ("1234567890123456", "123456789012"),
        ("a\tb\u202ec", "a b c"),
    ],
)
def test_last_words(text: str, words: str) -> None:
    assert last_words(text, 12) == words


def test_last_words_are_those_of_the_script() -> None:
    log = """2026-11-23 21:06:53,779 elasticjob I round 2: group rank 1 of 2, led by 127.232.0.4:46835
upload: no such bucket
2026-11-23 21:06:58,823 elasticjob I all local workers have succeeded
2026-11-23 21:06:58,824 elasticjob E the pod's Lease cannot be written"""
    assert last_words(log, 300) == (
        "upload: no such bucket | 2026-11-23 21:06:58,824 elasticjob E the pod's Lease cannot be written"
    )


def test_the_annotated_container_trains() -> None:
    scene = Scene()
    scene.pod(
        metadata={
            **raw_pod()["metadata"],
            "annotations": {"kubectl.kubernetes.io/default-container": "sidecar"},
        },
        status={
            "containerStatuses": [
                status("main", terminated={"exitCode": 1}),
                status("sidecar", running={}),
            ]
        },
    )
    assert scene.only().exit is None
    assert scene.only().running


def test_phase_reason_and_message() -> None:
    scene = Scene()
    scene.pod(status={"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"})
    pod = scene.only()
    assert (pod.ended, pod.reason, pod.message) == (True, "Evicted", "The node was low on memory")


def test_a_disruption_is_a_reason() -> None:
    scene = Scene()
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "m",
    }
    scene.pod(status={"conditions": [condition]})
    assert (scene.only().reason, scene.only().message) == ("PreemptionByScheduler", "m")


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated", "Schedulable"])
def test_unschedulable(reason: str) -> None:
    scene = Scene()
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/3 nodes"}
    scene.pod(status={"phase": "Pending", "conditions": [condition]})
    assert scene.only().unschedulable == "0/3 nodes"


def test_waiting_for_an_image() -> None:
    scene = Scene()
    waiting = status("main", waiting={"reason": "ErrImagePull", "message": "no such image"})
    scene.pod(status={"phase": "Pending", "containerStatuses": [waiting]})
    assert scene.only().waiting == "ErrImagePull: no such image"


def test_waiting_in_an_init_container() -> None:
    scene = Scene()
    scene.pod(
        status={
            "phase": "Pending",
            "containerStatuses": [status("main", waiting={"reason": "PodInitializing"})],
            "initContainerStatuses": [status("fetch", waiting={"reason": "CrashLoopBackOff"})],
        }
    )
    assert scene.only().waiting == "CrashLoopBackOff"


def test_an_init_container_has_ended_the_pod() -> None:
    scene = Scene()
    inits = [status("first", terminated={"exitCode": 0}), status("fetch", terminated={"exitCode": 3})]
    ended = {"phase": "Failed", "initContainerStatuses": inits}
    waiting = status("main", waiting={"reason": "PodInitializing"})
    scene.pod(status={**ended, "containerStatuses": [waiting]})
    assert (scene.only().failed_init, scene.only().exit) == ("fetch", Exit(3))
    scene.pod(status={**ended, "containerStatuses": [waiting], "reason": "Evicted"})
    assert (scene.only().failed_init, scene.only().reason) == ("fetch", "Evicted")
    # A sidecar among them is told to end when all is over, and says nothing of why.
    main = status("main", terminated={"exitCode": 1})
    scene.pod(status={**ended, "containerStatuses": [main]})
    assert (scene.only().failed_init, scene.only().exit) == ("", Exit(1))


@pytest.mark.parametrize(
    ("state", "sidecar_running"),
    [({"running": {}}, True), ({"waiting": {}}, True), ({"terminated": {}}, False)],
)
def test_a_sidecar_keeps_a_pod_from_ending_unless_the_kubelet_ends_it(
    state: dict[str, Any], sidecar_running: bool
) -> None:
    scene = Scene()
    ended = status("main", terminated={"exitCode": 1})
    scene.pod(status={"containerStatuses": [ended, status("sidecar", **state)]})
    assert scene.only().sidecar_running is sidecar_running
    native = [status("proxy", running={})]
    scene.pod(status={"containerStatuses": [ended], "initContainerStatuses": native})
    assert not scene.only().sidecar_running


def test_mine_is_by_owner_with_a_template_and_by_label_without() -> None:
    scene = Scene()
    scene.pod(metadata={**raw_pod()["metadata"], "ownerReferences": [{"uid": "former", "controller": True}]})
    assert not scene.only(TEMPLATED).of_this_job
    assert scene.only(FOREIGN).of_this_job


@pytest.mark.parametrize(
    ("labels", "slot"),
    [
        ({"batch.kubernetes.io/job-completion-index": "4"}, 4),
        ({"apps.kubernetes.io/pod-index": "5"}, 5),
        ({"elasticjob.dev/slot": "1", "apps.kubernetes.io/pod-index": "5"}, 1),
        ({}, None),
        ({"elasticjob.dev/slot": "x"}, None),
        ({"elasticjob.dev/slot": "-1"}, None),
    ],
)
def test_slot(labels: dict[str, str], slot: int | None) -> None:
    scene = Scene()
    theirs = {"labels": {JOB_LABEL: "job", **labels}, "ownerReferences": []}
    scene.pod(metadata={**raw_pod()["metadata"], **theirs})
    assert scene.only(FOREIGN).slot == slot


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [
        ({"elasticjob.dev/slot": "0", "elasticjob.dev/attempt": "0"}, ""),
        ({"elasticjob.dev/attempt": "0"}, "elasticjob.dev/slot=none"),
        ({"elasticjob.dev/slot": "1", "elasticjob.dev/attempt": "0"}, "elasticjob.dev/slot=1"),
        (
            {"elasticjob.dev/slot": "zero", "elasticjob.dev/attempt": "4"},
            "elasticjob.dev/slot=zero, elasticjob.dev/attempt=4",
        ),
    ],
)
def test_the_name_of_a_pod_that_was_made_counts_not_its_labels(labels: dict[str, str], wrong: str) -> None:
    scene = Scene()
    scene.pod(metadata={**raw_pod()["metadata"], "labels": {JOB_LABEL: "job", **labels}})
    pod = scene.only()
    assert (pod.of_this_job, pod.slot, pod.attempt, pod.mislabeled) == (True, 0, 0, wrong)


@pytest.mark.parametrize("name", ["debug", "job-0", "job-01-0", "other-0-0", "job-0-0-0", "job-0-123456789"])
def test_a_pod_that_bears_the_owner_and_no_name_of_ours_is_not_mine(name: str) -> None:
    scene = Scene()
    scene.pod(name)
    assert not scene.only().of_this_job


def test_pods_of_other_jobs_are_not_seen() -> None:
    scene = Scene()
    scene.pod(metadata={**raw_pod()["metadata"], "labels": {JOB_LABEL: "other"}})
    assert scene.observe().pods == ()


@pytest.mark.parametrize(
    ("condition", "disruption"),
    [
        ({"status": "True", "reason": "PreemptionByScheduler"}, "PreemptionByScheduler"),
        ({"status": "False", "reason": "PreemptionByScheduler"}, ""),
    ],
)
def test_who_takes_the_pod_away(condition: dict[str, str], disruption: str) -> None:
    scene = Scene()
    scene.pod(
        status={"conditions": [{"type": "DisruptionTarget", "message": "in its own words", **condition}]}
    )
    pod = scene.only()
    assert (pod.disruption, pod.reason) == (disruption, disruption)
    assert pod.message == ("in its own words" if disruption else "")


def test_the_kubelets_words_come_before_the_conditions() -> None:
    scene = Scene()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    scene.pod(
        status={
            "phase": "Failed",
            "reason": "Evicted",
            "message": "low on memory",
            "conditions": [{**condition, "message": "terminated by kubelet"}],
        }
    )
    pod = scene.only()
    assert (pod.disruption, pod.reason, pod.message) == ("TerminationByKubelet", "Evicted", "low on memory")


def test_a_container_that_was_restarted_in_place_says_how_it_had_ended() -> None:
    restarted = {
        "name": "main",
        "state": {"running": {}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        "restartCount": 3,
    }
    pod = read_pod(raw_pod(status={"containerStatuses": [restarted, status("sidecar", running={})]})).pod
    assert (pod.exit, pod.last_exit, pod.running) == (None, Exit(137, "OOMKilled"), True)
    assert pod.restarts == 3
    fresh = read_pod(raw_pod(status={"containerStatuses": [status("main", running={})]})).pod
    assert (fresh.last_exit, fresh.restarts) == (None, 0)


def test_how_workers_have_started_is_read_and_starts_no_pass_but_for_what_growth_waits_for() -> None:
    def read(old: SeenLease | None, **annotations: str) -> SeenLease:
        given = {f"elasticjob.dev/{key}": text for key, text in annotations.items()}
        return read_lease({"metadata": {"name": "x", "annotations": given}, "spec": {}}, old)

    record = ParticipantRecord("id-1", "Joining", "10.0.0.1:4000").dump()
    first = read(None, participant=record)
    assert first.participant.starts is None
    second = read(first, participant=record, starts=StartsReport("n", 1, 1, "a\nb").dump())
    assert second.participant.starts == StartsReport("n", 1, 1, "a b")
    assert second == first, "no news"
    assert read(second, participant=record, starts=StartsReport("n", 2).dump()).participant.starts == (
        StartsReport("n", 2)
    )
    preparing = read(second, participant=record, starts=StartsReport("n", 2, preparing=True).dump())
    assert preparing != second, "the round does not grow yet"
    more = read(preparing, participant=record, starts=StartsReport("n", 3, preparing=True).dump())
    assert more == preparing
    assert read(more, participant=record, starts=StartsReport("n", 3).dump()) != more, "now it may"
    wrong = read(first, participant=record, starts='{"warm": -1}', progress="7")
    assert (wrong.participant.starts, wrong.participant.record) == (None, first.participant.record)
    assert "starts report" in wrong.participant.problem
    assert "progress report" in wrong.participant.problem


def test_where_the_state_came_from_is_news() -> None:
    def read(old: SeenLease | None, text: str) -> SeenLease:
        annotations = {"elasticjob.dev/resumed": text}
        return read_lease({"metadata": {"name": "x", "annotations": annotations}, "spec": {}}, old)

    report = ResumedReport("n", 7, "Memory", 640)
    first = read(None, report.dump())
    assert first.participant.resumed == report
    assert read(first, report.dump()) == first
    assert read(first, ResumedReport("m", 7, "Memory", 640).dump()) != first
    newer = read(first, ResumedReport("n", 7, "Elsewhere", 640).dump())
    assert newer.participant.resumed == ResumedReport("n", 7, "Elsewhere", 640), "of a newer handler"
    wrong = read(first, report.dump().replace(":7", ":-1"))
    assert wrong.participant.resumed is None
    assert "resumed report: step is -1" in wrong.participant.problem


def test_what_a_pod_said_last_is_kept_for_a_while() -> None:
    """It was seen being evicted, and its object is gone before a pass could write that."""
    scene = Scene()
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    scene.pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, status={"conditions": [evicted]})
    scene.pod("job-1-0")
    assert not scene.observe().removed, "they are there"
    for name in ("job-0-0", "job-1-0"):
        scene.cache.pods.remove("ns", name, f"uid-{name}", scene.tick())
    assert [(uid, pod.disruption) for uid, pod in scene.observe().removed.items()] == [
        ("uid-job-0-0", "EvictionByEvictionAPI")
    ], "the other one says nothing of its end"
    scene.now += KEPT_SECONDS
    scene.pod("job-2-0", status={"phase": "Failed", "reason": "Evicted"})
    scene.cache.pods.remove("ns", "job-2-0", "uid-job-2-0", scene.tick())
    assert list(scene.observe().removed) == ["uid-job-2-0"]


def test_a_pod_that_a_list_shows_as_made_again_has_gone() -> None:
    """The list comes before the watch tells that the first pod was deleted, and that is then no news."""
    scene = Scene()
    scene.pod(status={"phase": "Failed", "reason": "Evicted"})
    scene.pod(metadata={"uid": "another", "resourceVersion": str(scene.tick())})
    scene.cache.pods.remove("ns", "job-0-0", "uid-job-0-0", scene.tick())
    assert [pod.uid for pod in scene.observe().pods] == ["another"]
    assert list(scene.observe().removed) == ["uid-job-0-0"]


def test_only_the_last_of_the_removed_pods_are_kept() -> None:
    removed = RemovedPods(lambda: 0.0)
    for number in range(MOST + 10):
        removed.add("ns", Pod(f"job-{number}-0", str(number), reason="Evicted"))
    assert (len(removed.by_uid), next(iter(removed.by_uid))) == (MOST, "10")


def test_who_has_most_of_the_removed_pods_displaces_its_own_alone() -> None:
    removed = RemovedPods(lambda: 0.0)
    theirs = [f"theirs-{number}" for number in range(10)]
    for uid in theirs:
        removed.add("theirs", Pod(uid, uid, reason="Evicted", avoids=("node",) * 100))
    for number in range(2 * MOST):
        removed.add("flood", Pod("flood", str(number), reason="Evicted"))
    assert list(removed.by_uid)[:10] == theirs
    assert removed.by_uid[theirs[0]].avoids == (), "only what tells its end is kept"
    assert len(removed.by_uid) == MOST
