"""Commands that go on after torchrun: Complete is when the containers have ended with 0."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from devcluster.wait import wait_for
from tests.e2e.job import DEADLINE, SCRIPTS, TORCHRUN, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

TRAIN = shlex.join([*TORCHRUN, str(SCRIPTS / "alone.py")])


def apply(job: JobRun, command: str) -> None:
    """The command of every pod, in a shell that has the test's folder as $1."""
    job.apply(["sh", "-c", command, "sh", str(job.folder)])


def finished(job: JobRun) -> bool:
    return "all members succeeded" in job.condition("Training").get("message", "")


def marks(job: JobRun, kind: str) -> list[str]:
    return sorted(path.name for path in job.folder.glob(f"{kind}-*"))


def test_what_comes_after_torchrun_is_waited_for(job: JobRun) -> None:
    """torchrun train.py && upload: the upload takes as long as it needs, in pods that stay untouched."""
    upload = 'until [ -e "$1/stop" ]; do sleep 0.1; done; touch "$1/uploaded-$ELASTICJOB_POD_NAME"'
    apply(job, f"{TRAIN} && {{ {upload}; }}")
    job.wait_for(lambda: finished(job), "Training says that all members succeeded")
    message = job.condition("Training")["message"]
    assert f"waiting for the containers of {job.name}-0-0, {job.name}-1-0 to end" in message
    wait_for(lambda: all_succeeded(job), DEADLINE, "the status says so of each")
    assert not job.events("JobComplete")
    assert all("deletionTimestamp" not in pod["metadata"] for pod in job.pods().values())
    assert not marks(job, "uploaded")
    job.stop()
    job.complete()
    assert len(marks(job, "uploaded")) == 2
    assert [r["cause"] for r in job.rounds()] == ["Started"]


def all_succeeded(job: JobRun) -> bool:
    return [p["state"] for p in job.status()["participants"]] == ["Succeeded", "Succeeded"]


@pytest.mark.slow
# shows: the command starts torchrun again after success
def test_a_second_torchrun_in_the_same_command_begins_the_next_round(job: JobRun) -> None:
    """torchrun prep.py && torchrun train.py, in the same pods, uncharged."""
    mark = 'touch "$1/{}-$ELASTICJOB_POD_NAME"'
    apply(job, f"{TRAIN} && {mark.format('prepared')} && {TRAIN} && {mark.format('trained')}")
    job.complete()
    assert (len(marks(job, "prepared")), len(marks(job, "trained"))) == (2, 2)
    assert [(r["number"], r["cause"]) for r in job.rounds()] == [(1, "Started"), (2, "StartedAgain")]
    assert job.status()["restarts"] == 0
    assert set(job.pods()) == {f"{job.name}-0-0", f"{job.name}-1-0"}


@pytest.mark.slow
# shows: the command fails after torchrun (`torchrun train.py && upload`)
def test_a_command_that_fails_after_torchrun_is_a_failure(job: JobRun) -> None:
    """Rank by rank the same command: in one pod the upload fails once. All begin again, and end well."""
    upload = '{ [ "$ELASTICJOB_POD_NAME" != "$JOB-1-0" ] || { echo no such bucket; exit 7; }; }'
    upload = upload.replace("$JOB", job.name)
    apply(job, f"{TRAIN} && {upload}")
    job.wait_for(lambda: job.round().get("number") == 2, "round 2")
    job.complete()
    assert [(r["number"], r["cause"]) for r in job.rounds()] == [(1, "Started"), (2, "PodFailed")]
    message = job.rounds()[1]["message"]
    assert re.search(
        r"^after .* workers had succeeded, the command of .* ended with exit code 7: .*\bno such bucket",
        message,
    ), message
    (charge,) = next(a for a in job.status()["accounts"] if a["name"] == "application")["charges"]
    assert charge["cause"] == "PodFailed"


def test_processes_are_those_that_the_command_asks_for(job: JobRun) -> None:
    """Not those of the variable that the operator sets, which a flag of torchrun's overrides."""
    worker = 'until [ -e "$1/stop" ]; do sleep 0.1; done'
    torchrun = shlex.join([*TORCHRUN, "--nproc-per-node=8", "--no-python", "sh", "-c", worker, "sh"])
    job.apply(["sh", "-c", f'{torchrun} "$1"', "sh", str(job.folder)], replicas=1)
    job.wait_for(lambda: "establishedTime" in job.round(), "the round is established")
    env = job.pods()[f"{job.name}-0-0"]["spec"]["containers"][0]["env"]
    assert {"name": "PET_NPROC_PER_NODE", "value": "1"} in env
    assert (job.round()["members"], job.round()["worldSize"]) == (1, 8)
    job.stop()
    job.complete()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["env", "envFrom"])
def test_what_the_environment_says_of_rounds_is_replaced(job: JobRun, where: str) -> None:
    """PET_STANDALONE and its like, as an image or a ConfigMap may bring them from another launcher."""
    apart = {"PET_STANDALONE": "1", "PET_NNODES": "1", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "x:1"}
    job.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "launcher"}, "data": apart})
    given: dict[str, Any] = {"env": apart} if where == "env" else {"env_from": "launcher"}
    job.apply([*TORCHRUN, str(SCRIPTS / "alone.py")], **given)
    job.complete()
    assert [(r["cause"], r["members"]) for r in job.rounds()] == [("Started", 2)]


@pytest.mark.slow
def test_a_shell_that_sets_what_keeps_pods_apart_is_named(job: JobRun) -> None:
    apply(job, f"export PET_STANDALONE=1; {TRAIN}")
    failed = job.failed()
    assert failed["reason"] == "NeverJoined"
    assert "its command has PET_STANDALONE=1, so each pod trains alone: delete the job" in failed["message"]
    assert "'PET_STANDALONE=1' in its command" in job.told("FlagOverridesEnvironment")[0]
