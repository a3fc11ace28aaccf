"""Quota follows pods, whatever happens to the job, its Workloads and the operator: with the real Kueue, and
participants that the tests play."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import API, Kueue
from elasticjob.contract.names import ATTEMPT_LABEL
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import ENDS_SLOWLY, PlayedJob
from tests.kueue.queued_job import all_run, apply, submit
from tests.kueue.stage import Stage, labels

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


# shows: it has more rights than it needs
def test_a_job_without_the_label_is_none_of_kueues_business(stage: Stage, played: PlayedJob) -> None:
    stage.queue("a", 0, stage.flavor())
    played.apply(replicas=1)
    all_run(played, 1)
    assert stage.of_job(played) == {}


def test_an_operator_that_is_not_to_heed_kueue_makes_no_workload(
    kueue: Kueue, stage: Stage, played: PlayedJob, operator: Operator, installed: Cluster
) -> None:
    del kueue
    operator.stop()
    plain = Operator(installed, played.namespace, operator.log)
    try:
        stage.queue("a", 0, stage.flavor())
        played.labels = labels("a")
        played.apply(replicas=1)
        all_run(played, 1)
        assert stage.of_job(played) == {}
    finally:
        plain.stop()


def test_a_deleted_job_keeps_its_quota_until_its_pods_have_ended(stage: Stage, played: PlayedJob) -> None:
    apply(stage, played, ENDS_SLOWLY)
    all_run(played)
    stage.ask("next", "a", 4)
    played.delete("--wait=false")
    played.wait_for(lambda: not played.get(), "the job is gone")
    assert played.pods(), "they have 4 s"
    assert not stage.admitted("next")
    played.wait_for(lambda: stage.admitted("next"), "the next has the quota")
    assert not played.pods()
    played.wait_for(lambda: not stage.of_job(played), "no Workload is left")


@pytest.mark.parametrize("cascade", ["foreground", "orphan"])
def test_any_kind_of_deletion_leaves_no_quota_behind(stage: Stage, played: PlayedJob, cascade: str) -> None:
    apply(stage, played)
    all_run(played)
    played.delete(f"--cascade={cascade}")
    played.wait_for(lambda: not stage.of_job(played), "no Workload is left")
    played.wait_for(lambda: stage.used("a") == 0, "no quota is used")


def test_a_suspended_job_gives_all_back_and_asks_anew(stage: Stage, played: PlayedJob) -> None:
    apply(stage, played)
    all_run(played)
    played.patch(suspend=True)
    played.reads("Suspended", "Suspended")
    played.wait_for(lambda: not stage.of_job(played), "no Workload is left")
    assert not played.pods()
    played.patch(suspend=False)
    all_run(played)
    played.wait_for(lambda: stage.used("a") == 4, "the quota of 4 pods is used")


def test_a_job_that_has_ended_gives_all_back_and_its_base_stays_as_a_record(
    stage: Stage, played: PlayedJob
) -> None:
    apply(stage, played, activeDeadlineSeconds=5)
    all_run(played)
    played.is_true("Failed")
    played.wait_for(lambda: stage.used("a") == 0, "no quota is used", 90)
    played.wait_for(lambda: list(stage.of_job(played)) == ["base"], "its base is left")
    base = stage.of_job(played)["base"]
    assert (base.finished, base.kept) == (True, False)


def test_a_job_that_completes_gives_all_back(stage: Stage, played: PlayedJob, tmp_path: Path) -> None:
    apply(stage, played, f"trap 'exit 143' TERM; while [ ! -e {tmp_path}/stop ]; do sleep 0.2; done")
    played.join(*all_run(played))
    played.round(1)
    stage.ask("next", "a", 4)
    (tmp_path / "stop").touch()
    played.is_true("Complete")
    played.wait_for(lambda: stage.admitted("next"), "the next has the quota")
    played.wait_for(lambda: stage.used("a") == 4, "no other quota is used")
    played.wait_for(lambda: list(stage.of_job(played)) == ["base"], "its base is left")
    base = stage.of_job(played)["base"]
    assert (base.finished, base.kept) == (True, False)


def test_a_queue_that_an_admin_drains_stops_its_jobs_and_resumes_them(
    stage: Stage, played: PlayedJob
) -> None:
    apply(stage, played)
    first = all_run(played)
    stage.stop("a")
    played.reads("Suspended", "Queued")
    played.no_pods()
    played.wait_for(lambda: stage.used("a") == 0, "no quota is used")
    assert list(stage.of_job(played)) == ["base"]
    stage.stop("a", "None")
    assert not set(first) & set(all_run(played))
    played.wait_for(lambda: stage.used("a") == 4, "the quota of 4 pods is used")


def test_a_base_that_an_admin_deactivates_takes_its_extras_with_it(stage: Stage, played: PlayedJob) -> None:
    """Kueue itself leaves them admitted."""
    apply(stage, played)
    all_run(played)
    base = stage.of_job(played)["base"].name
    stage.activate(base, False)
    played.wait_for(lambda: not played.pods() and list(stage.of_job(played)) == ["base"], "all is given back")
    played.wait_for(lambda: stage.used("a") == 0, "no quota is used")
    played.says(f"queue a does not admit it while spec.active of its Workload {base} is false")
    stage.activate(base)
    all_run(played)


def pods_ready(stage: Stage, job: PlayedJob, name: str) -> tuple[str, str]:
    """Status and reason of the condition by which Kueue judges the pods of one of the job's Workloads."""
    found = stage.of_job(job).get(name)
    raw = stage.cluster.read(f"{API}/namespaces/{stage.namespace}/workloads/{found.name}") if found else {}
    conditions = raw.get("status", {}).get("conditions", [])
    return next(
        ((one["status"], one["reason"]) for one in conditions if one["type"] == "PodsReady"), ("", "")
    )


def test_what_has_lost_a_pod_is_ready_no_more_until_the_next_has_joined(
    stage: Stage, played: PlayedJob, installed: Cluster
) -> None:
    apply(stage, played, scaling={"scaleUpDelaySeconds": 0})
    names = all_run(played)
    played.join(*names)
    played.round(1)
    played.wait_for(lambda: pods_ready(stage, played, "x1") == ("True", "Started"), "all are ready")
    nodes = [one["metadata"]["name"] for one in installed.read("/api/v1/nodes")["items"]]
    installed.kubectl("cordon", *nodes)
    try:
        played.kubectl("delete", "pod", names[-1], "--wait=false")
        lost = ("False", "WaitForRecovery")
        played.wait_for(lambda: pods_ready(stage, played, "x1") == lost, "the last extra is not ready")
        assert pods_ready(stage, played, "base")[0] == pods_ready(stage, played, "x0")[0] == "True"
    finally:
        installed.kubectl("uncordon", *nodes)
    played.join(*all_run(played))
    played.round(2)
    played.wait_for(lambda: pods_ready(stage, played, "x1") == ("True", "Recovered"), "it has recovered")

    stage.ask("urgent", "a", 4, priority=500)
    played.wait_for(lambda: stage.admitted("urgent"), "another has all of the quota")
    stage.withdraw("urgent")
    all_run(played)
    assert pods_ready(stage, played, "base") == ("False", "WaitForStart"), "these have not started"


def test_an_operator_that_dies_in_an_eviction_is_no_loss(
    stage: Stage, played: PlayedJob, operator: Operator
) -> None:
    apply(stage, played, ENDS_SLOWLY)
    all_run(played)
    operator.kill()
    stage.ask("urgent", "a", 3, priority=500)
    played.wait_for(lambda: stage.of_job(played)["base"].must_leave, "Kueue asks for the quota")
    operator.restart()
    played.wait_for(
        lambda: any("deletionTimestamp" in pod["metadata"] for pod in played.pods().values()), "pods end"
    )
    operator.kill()
    played.wait_for(lambda: not played.pods(), "the pods have ended")
    assert not stage.admitted("urgent")
    operator.restart()
    played.wait_for(lambda: stage.admitted("urgent"), "the other is admitted")
    assert list(stage.of_job(played)) == ["base"]


def test_a_workload_that_someone_deletes_is_let_go_with_its_pods(stage: Stage, played: PlayedJob) -> None:
    apply(stage, played)
    first = all_run(played)
    base = stage.of_job(played)["base"]
    played.kubectl("delete", "workload", base.name, "--wait=false")
    played.wait_for(lambda: stage.of_job(played).get("base", base).uid != base.uid, "there is another base")
    second = all_run(played)
    assert not set(first) & set(second)
    assert {pod["metadata"]["labels"][ATTEMPT_LABEL] for pod in played.pods().values()} == {"1"}


def test_kueue_may_be_away_and_start_again(stage: Stage, played: PlayedJob, kueue: Kueue) -> None:
    apply(stage, played)
    names = all_run(played)
    kueue.component.kill()
    try:
        played.join(*names)
        played.round(1)
    finally:
        kueue.component.start()
    stage.ask("urgent", "a", 2, priority=500)
    played.wait_for(lambda: stage.admitted("urgent"), "the other is admitted", 120)
    assert len(played.pods()) <= 2


def test_kueue_may_be_away_while_it_evicts(stage: Stage, played: PlayedJob, kueue: Kueue) -> None:
    """It dies when it has asked for the quota, and again when that was given back."""
    apply(stage, played, ENDS_SLOWLY)
    all_run(played)
    stage.ask("urgent", "a", 3, priority=500)
    played.wait_for(lambda: stage.of_job(played)["base"].must_leave, "Kueue asks for the quota")
    kueue.component.kill()
    try:
        played.no_pods()
        # Its webhook judges each write of a Workload.
        played.says("its Workloads in the queue cannot be written")
        assert stage.of_job(played)["base"].must_leave
        kueue.component.start()
        played.wait_for(lambda: not stage.of_job(played)["base"].reserved, "the quota is given back")
        kueue.component.kill()
    finally:
        if not kueue.component.running:
            kueue.component.start()
    played.wait_for(lambda: stage.admitted("urgent"), "the other is admitted", 120)
    assert not played.pods()
    assert list(stage.of_job(played)) == ["base"]
    stage.withdraw("urgent")
    all_run(played)
    played.wait_for(lambda: stage.used("a") == 4, "the quota of 4 pods is used")


def test_extras_follow_the_class_of_their_job(stage: Stage, played: PlayedJob) -> None:
    """Kueue changes the priority of the Workloads with a reference to the class, and extras have none."""
    name = stage.priority_class(100)
    played.labels = labels("a", name)
    apply(stage, played)
    all_run(played)

    def priorities() -> dict[str, int]:
        return {short: one.priority for short, one in stage.of_job(played).items()}

    assert priorities() == {"base": 100, "x0": 99, "x1": 99}
    change = json.dumps({"value": 2000})
    stage.cluster.kubectl("patch", "workloadpriorityclass", name, "--type=merge", "-p", change)
    played.wait_for(lambda: priorities() == {"base": 2000, "x0": 1999, "x1": 1999}, "the extras follow")
    played.wait_for(lambda: stage.used("a") == 4, "the quota of 4 pods is used")


def test_scaled_down_by_a_part_of_an_extra_that_part_is_given_back(stage: Stage, played: PlayedJob) -> None:
    apply(stage, played, quota=6, replicas=6)
    all_run(played, 6)
    assert {name: one.count for name, one in stage.of_job(played).items()} == {
        "base": 2,
        "x0": 1,
        "x1": 1,
        "x2": 2,
    }
    played.scale(3)
    all_run(played, 3)
    played.wait_for(lambda: stage.used("a") == 3, "the rest is given back")
    assert sum(one.count for one in stage.of_job(played).values()) == 3


def test_a_job_that_may_have_some_sizes_only_gets_smaller_by_a_whole_step(
    stage: Stage, played: PlayedJob
) -> None:
    """The lender wants one pod back, and three members are none of its sizes."""
    flavor = stage.flavor()
    stage.queue("a", 3, flavor)
    stage.queue("b", 1, flavor)
    submit(played, scaling={"sizes": [2, 4], "scaleUpDelaySeconds": 0})
    played.join(*all_run(played))
    assert played.round(1)["members"] == 4
    assert {name: one.count for name, one in stage.of_job(played).items()} == {"base": 2, "x0": 2}
    stage.ask("lender", "b", 1)
    played.wait_for(lambda: stage.admitted("lender"), "the lender has its quota")
    played.join(*all_run(played, 2))
    assert played.round(2)["members"] == 2
    played.says("queue a admits 2 of 4 pods")
    stage.withdraw("lender")
    played.join(*all_run(played))
    assert played.round(3)["members"] == 4


def test_a_job_whose_class_is_not_there_says_so(stage: Stage, played: PlayedJob) -> None:
    name = "not-there"
    played.labels = labels("a", name)
    apply(stage, played)
    assert f'"{name}" not found' in played.says("its Workloads in the queue cannot be written")
