"""Real torchruns, real gloo: a member is lost and training goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.wait import wait_for
from tests.e2e.job import DIGITS, SCRIPTS, TORCHRUN, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.matrix]


def test_trains_to_the_end(job: JobRun) -> None:
    job.apply()
    job.training(1, members=2)
    job.stop()
    job.complete()
    status = job.status()
    assert [(r["number"], r["cause"]) for r in job.rounds()] == [(1, "Started")]
    assert status["restarts"] == 0
    assert {s["rank"] for s in job.steps()} == {0, 1}
    job.wait_for(
        lambda: all(p["status"]["phase"] == "Succeeded" for p in job.pods().values()),
        "all pods have ended well",
    )
    assert job.condition("Training")["reason"] == "Complete"


@pytest.mark.slow
# shows: a worker process dies
def test_a_worker_is_killed(job: JobRun) -> None:
    job.apply()
    job.training(1, members=2)
    before = job.pods()
    job.kill_worker("job-1-0")
    job.training(2, members=2)
    assert job.pods().keys() == before.keys(), "no pod was replaced"
    second = job.rounds()[1]
    assert (second["cause"], second["account"]) == ("WorkerFailed", "application")
    assert job.status()["restarts"] == 1
    job.stop()
    job.complete()


@pytest.mark.slow
# shows: a container dies (SIGKILL)
def test_a_pod_is_killed_and_replaced(job: JobRun) -> None:
    job.apply()
    job.training(1, members=2)
    job.kill_pod("job-1-0")
    job.training(2, members=2)
    ranks = {p["podName"]: p["groupRank"] for p in job.status()["participants"] if "groupRank" in p}
    assert ranks == {"job-0-0": 0, "job-1-1": 1}, "the survivor keeps its rank"
    second = job.rounds()[1]
    assert (second["cause"], second["account"]) == ("PodLost", "infrastructure")
    assert "SIGKILL" in second["message"]
    assert "job-1-1 took over group rank 1" in second["message"]
    assert job.status()["restarts"] == 1, "one root failure is charged once"
    assert job.pods()["job-1-0"]["status"]["phase"] == "Failed", "kept, so that its log can be read"
    job.stop()
    job.complete()


def digits(folder: Path, epochs: int = 40) -> list[str]:
    return [
        *TORCHRUN,
        str(DIGITS),
        f"--checkpoint-dir={folder}",
        f"--step-log={folder}/steps.jsonl",
        f"--epochs={epochs}",
        "--width=256",
        "--depth=3",
    ]


def ids_by_step(steps: list[dict[str, Any]]) -> dict[int, str]:
    """The hash of the sample ids of each step; a step that was redone must have the same ids."""
    found: dict[int, str] = {}
    for step in steps:
        assert found.setdefault(step["step"], step["ids"]) == step["ids"], (
            f"step {step['step']} redone differs"
        )
    return found


# shows: rank 0's pod dies
def test_rank_0_is_killed_and_the_result_is_that_of_the_undisturbed_run(job: JobRun, tmp_path: Path) -> None:
    """The sequence of sample ids is the same, and so is the loss within 1e-3 (summation order differs)."""
    undisturbed = JobRun(job.cluster, job.namespace, tmp_path / "undisturbed", "undisturbed")
    undisturbed.apply(digits(undisturbed.folder))
    undisturbed.complete()
    job.apply(digits(job.folder))
    first = job.training(1, members=2)
    job.wait_for(lambda: len(job.steps()) > 60, "60 steps")
    job.kill_pod(first["leaderPodName"])
    job.complete()
    assert [r["cause"] for r in job.rounds()][:2] == ["Started", "PodLost"]
    assert {s["round"] for s in job.steps()} == {1, 2}
    assert ids_by_step(job.steps()) == ids_by_step(undisturbed.steps())
    results = [json.loads((run.folder / "result.json").read_text()) for run in (job, undisturbed)]
    assert results[0]["final_loss"] == pytest.approx(results[1]["final_loss"], abs=1e-3)
    assert results[0]["resumed_from_step"] > 0


@pytest.mark.slow
# shows: a member dies right after the barrier
def test_a_member_dies_right_after_the_barrier(job: JobRun) -> None:
    """Between the barrier and torch's rank assignment: no agent blocks there, the next round forms."""
    job.apply(["python", str(SCRIPTS / "dies_after_barrier.py"), str(SCRIPTS / "steps.py"), str(job.folder)])
    job.training(2, members=2)
    assert job.rounds()[1]["cause"] == "PodLost"
    job.stop()
    job.complete()


# shows: pods cannot be scheduled
def test_shrinks_below_replicas_and_grows_again(job: JobRun) -> None:
    job.apply(replicas=2, minReplicas=1)
    job.training(1, members=2)
    nodes = job.cluster.node_names
    try:
        for node in nodes:
            job.cluster.kubectl("cordon", node)
        job.kill_pod("job-0-0")
        job.training(2, members=1)
        message = job.condition("Training")["message"]
        assert "job-0-1" in message, "the status says which pod can't be scheduled"
        assert "unschedulable" in message
    finally:
        for node in nodes:
            job.cluster.kubectl("uncordon", node)
    third = job.training(3, members=2)
    assert third["cause"] == "ScaledUp"
    job.stop()
    job.complete()


@pytest.mark.slow
# shows: `kubectl scale` up, or an autoscaler
# shows: `kubectl scale` down
def test_scaled_up_and_down(job: JobRun) -> None:
    job.apply(replicas=1, minReplicas=1, maxReplicas=3)
    job.training(1, members=1)
    job.scale(3)
    up = job.training(2, members=3)
    assert up["cause"] == "ScaledUp"
    job.scale(2)
    down = job.training(up["number"] + 1, members=2)
    assert down["cause"] == "ScaledDown"
    job.wait_for(lambda: len(job.pods()) == 2, "the pod that left is gone")
    accounts = {a["name"]: a["used"] for a in job.status()["accounts"]}
    assert accounts["application"] == accounts["infrastructure"] == 0
    job.stop()
    job.complete()


@pytest.mark.slow
# shows: a member fails after others have succeeded
def test_one_member_fails_after_others_have_succeeded(job: JobRun) -> None:
    job.apply([*TORCHRUN, str(SCRIPTS / "late.py"), str(job.folder)])
    job.wait_for(
        lambda: (
            [p["state"] for p in job.status().get("participants", []) if p.get("groupRank") == 0]
            in (["Succeeded"], ["Completed"])
        ),
        "rank 0 has succeeded",
    )
    job.kill_pod("job-1-0")
    job.wait_for(lambda: job.round()["number"] == 2, "the next round")
    job.stop()
    job.complete()
    assert [r["cause"] for r in job.rounds()] == ["Started", "PodLost"]
    assert job.status()["restarts"] == 1
    assert set(job.pods()) >= {"job-0-1", "job-1-1"}


@pytest.mark.slow
# shows: the command does not use the rendezvous backend `k8s`
def test_standalone_in_the_manifest_by_mistake(job: JobRun) -> None:
    job.apply([*TORCHRUN, "--standalone", str(SCRIPTS / "alone.py")])
    failed = job.failed()
    assert failed["reason"] == "NeverJoined"
    assert (
        "its command has the flag --standalone, so each pod trains alone: delete the job" in failed["message"]
    ), "it says what to do"

    def told() -> bool:
        return (
            "--standalone" in job.cluster.kubectl("-n", job.namespace, "get", "events", "-o", "json").stdout
        )

    job.wait_for(told, "a Warning event names the flag")


# shows: an account is over its limit
def test_an_account_used_up_fails_the_job(job: JobRun) -> None:
    job.apply(
        [*TORCHRUN, str(SCRIPTS / "broken.py")],
        failurePolicy={"application": {"maxRestarts": 1, "windowSeconds": 3600}},
    )
    failed = job.failed()
    assert failed["reason"] == "ApplicationRestartsExhausted"
    assert job.round()["number"] == 2
    pods = job.pods()
    wait_for(
        lambda: "the job has failed" in "".join(job.log(pod) for pod in pods), 60.0, "a handler says so, too"
    )
