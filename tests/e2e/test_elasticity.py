"""Spares, growing and shrinking, and pods that cannot be scheduled, with real torchruns."""

from __future__ import annotations

import os

import pytest

from tests.e2e.job import JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


NO_SIZE = '{"spec": {"minReplicas": 2}}'


def ranks(job: JobRun) -> dict[str, int]:
    """The members' ranks by pod."""
    return {p["podName"]: p["groupRank"] for p in job.status()["participants"] if "groupRank" in p}


def standbys(job: JobRun) -> set[str]:
    """The pods that stand by, according to the status and to the label that autoscalers read."""
    said = {p["podName"] for p in job.status()["participants"] if p["state"] == "Standby"}
    labelled = {
        name for name, pod in job.pods().items() if "elasticjob.dev/standby" in pod["metadata"]["labels"]
    }
    return said & labelled


# shows: a container dies, and there is a spare
def test_a_spare_is_promoted_and_replaced(job: JobRun) -> None:
    job.apply(replicas=2, spares=1)
    job.training(1, members=2)
    before = set(ranks(job))
    (spare,) = job.wait_for(lambda: standbys(job), "a spare stands by")
    assert spare not in before
    assert job.status()["replicas"] == 2, "what /scale says leaves the spare out"
    lost = next(pod for pod, rank in ranks(job).items() if rank == 1)
    job.kill_pod(lost)
    second = job.training(2, members=2)
    assert second["number"] == 2, "the very round that lost a member promoted the spare"
    assert ranks(job)[spare] == 1, "the spare takes over the lost rank and keeps its name"
    history = job.rounds()[1]
    assert (history["cause"], history["account"]) == ("PodLost", "infrastructure")
    assert f"{spare} took over group rank 1" in history["message"]
    (fresh,) = job.wait_for(lambda: standbys(job) - {spare}, "another spare stands by")
    assert fresh not in before | {spare, lost}
    assert job.round()["number"] == 2, "its coming breaks nothing"
    assert job.status()["replicas"] == 2
    job.stop()
    job.complete()
    job.wait_for(
        lambda: all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in job.pods().values()),
        "also the spare has ended",
    )
    assert job.pods()[fresh]["status"]["phase"] == "Succeeded"


# shows: pods are lost or added, and rounds may only have some sizes ...
def test_rounds_have_one_of_some_sizes(job: JobRun) -> None:
    job.apply(replicas=3, minReplicas=1, scaling={"sizes": [1, 3], "scaleUpDelaySeconds": 0})
    job.training(1, members=3)
    job.scale(2)
    job.training(2, members=1)
    job.says("1 of 2 replicas train: sizes are 1, 3; 1 stands by")
    job.wait_for(lambda: len(job.pods()) == 2 and len(standbys(job)) == 1, "one stands by, one has gone")
    assert job.status()["replicas"] == 1, "what /scale says leaves it out"
    job.scale(4)
    job.training(3, members=3)
    job.says("3 of 4 replicas train: sizes are 1, 3; 1 stands by")
    assert [(entry["cause"], entry["members"]) for entry in job.rounds()[1:]] == [
        ("ScaledDown", 1),
        ("ScaledUp", 3),
    ]
    refused = job.cluster.kubectl(
        "patch", "ej/job", "-n", job.namespace, "--type=merge", "-p", NO_SIZE, check=False
    )
    assert "2 is not one of scaling.sizes ([1, 3])" in refused.stderr
    job.stop()
    job.complete()


@pytest.mark.slow
@pytest.mark.skipif("ELASTICJOB_TEST_PYTHON" in os.environ, reason="the newest torch is enough")
def test_a_pod_that_is_added_announces_itself_when_it_is_warm(job: JobRun) -> None:
    imports = ["not_there", "fractions"]
    job.apply(replicas=1, maxReplicas=2, warmWorkers={"imports": imports}, scaling={"scaleUpDelaySeconds": 0})
    job.training(1, members=1)
    job.scale(2)
    job.training(2, members=2)
    log = job.log("job-1-0")
    order = [
        "others train: this pod announces itself when its warm interpreters are ready",
        "cannot import not_there: ModuleNotFoundError: No module named 'not_there'; it is left out",
        "announced after",
        "round 2: group rank 1 of 2",
        "worker 0 starts warm",
    ]
    assert [line for line in order if line not in log] == [], log
    assert sorted(order, key=log.find) == order, log
    assert "not ready yet" not in log
    assert "still importing" not in log
    assert "announces itself" not in job.log("job-0-0"), "the first waits for nothing"
    job.stop()
    job.complete()
    first, second = (entry["workerStarts"] for entry in job.rounds())
    assert second == {"warm": 2, "cold": 0}
    # On a busy machine round 1 takes the interpreter before the wrong module has had its turn.
    assert first == {"warm": 1, "cold": 0} or first["coldReason"].startswith("cannot import not_there: ")


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_a_lost_pod_returns_when_all_members_can_start_warm(job: JobRun) -> None:
    """The job goes on with one at once. It grows again when the one that stayed has a new interpreter: else
    both would wait until its worker has imported torch."""
    job.deadline = 600.0  # workers import torch five times, beside whatever else the machine does
    job.apply(
        replicas=2,
        minReplicas=1,
        warmWorkers={},
        scaling={"scaleUpDelaySeconds": 0},
        rendezvous={"lastCallTimeoutSeconds": 0},
    )
    job.training(1, members=2)
    job.wait_for(lambda: "warm workers: ready" in warm_again(job), "the survivor's interpreter is ready")
    job.kill_pod("job-1-0")
    job.training(3, members=2)
    assert [(entry["cause"], entry["members"]) for entry in job.rounds()[1:]] == [
        ("PodLost", 1),
        ("ScaledUp", 2),
    ]
    for pod in ("job-0-0", "job-1-1"):
        _, _, third = job.log(pod).partition("round 3: group rank")
        assert "worker 0 starts warm" in third, job.log(pod)
        assert "still importing" not in third, job.log(pod)
    job.stop()
    job.complete()
    assert [entry["workerStarts"] for entry in job.rounds()[1:]] == [
        {"warm": 1, "cold": 0},
        {"warm": 2, "cold": 0},
    ]


def warm_again(job: JobRun) -> str:
    """What the first pod has logged since its worker started."""
    return job.log("job-0-0").rpartition("worker 0 starts")[2]


@pytest.mark.slow
# shows: pods cannot be scheduled
def test_pods_that_nobody_can_place_hold_up_nobody(job: JobRun) -> None:
    job.apply(replicas=2, minReplicas=2)
    job.training(1, members=2)
    nodes = job.cluster.kubectl("get", "nodes", "-o", "name").stdout.split()
    job.cluster.kubectl("cordon", *nodes)
    try:
        job.scale(4)
        said = job.wait_for(
            lambda: _sentence(job, "job-2-0, job-3-0: "), "the status says which can't be placed, and why"
        )
        assert "nodes are available" in said
        assert "unschedulable" in said
        assert job.round()["number"] == 1
        assert job.condition("Training")["status"] == "True"
    finally:
        job.cluster.kubectl("uncordon", *nodes)
    second = job.training(2, members=4)
    assert second["number"] == 2, "both are let in together"
    assert job.rounds()[1]["cause"] == "ScaledUp"
    job.stop()
    job.complete()


def _sentence(job: JobRun, part: str) -> str:
    message = str(job.condition("Training").get("message", ""))
    return message if part in message else ""
