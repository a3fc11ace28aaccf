"""Planned changes of a job whose script calls should_stop: the round drains, and no step is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster.wait import wait_for
from elasticjob.contract.text import node_words
from tests.e2e.job import DIGITS, PYTHON, SCRIPTS, TORCHRUN, JobRun, apart, change
from tests.e2e.test_preemption import evict
from tests.integration.test_node_notices import tainted

GONE_SECONDS = 50.0
"""Well over the 10 s of a hook and the time to end, well below the 70 s of one that waits for a next pod."""

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(1800)]


def drainable(job: JobRun, number: int, members: int) -> None:
    """Wait until this round trains, and its leader says that all workers take part."""

    def said() -> bool:
        now = job.round()
        if now.get("number") != number or now["members"] != members or "establishedTime" not in now:
            return False
        args = ("-n", job.namespace, "get", "lease", now["leaderPodName"], "-o", "json")
        text = json.loads(job.cluster.kubectl(*args).stdout)["metadata"]["annotations"]
        nonce = job.status()["internal"]["round"]["nonce"]
        return bool(json.loads(text.get("elasticjob.dev/drain", "{}")).get("nonce") == nonce)

    job.wait_for(said, f"round {number} with {members} members can be drained")


def digits(job: JobRun, log: Path) -> list[str]:
    """The example, which trains until the test ends, and saves only where it is asked to stop."""
    return [
        *TORCHRUN,
        str(DIGITS),
        f"--checkpoint-dir={job.folder}",
        f"--step-log={log}",
        "--checkpoint-every=100000000",
        "--epochs=1000000",
        "--width=64",
    ]


def steps_once(log: Path) -> set[int]:
    """Each step stands in the log once. Returns the rounds in which they were trained."""
    logged = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    assert [entry["step"] for entry in logged] == list(range(1, len(logged) + 1))
    return {entry["round"] for entry in logged}


# shows: scaled up or down, or `suspend: true`, and the script calls `should_stop`
def test_no_step_is_lost_when_a_job_is_scaled_and_suspended(job: JobRun) -> None:
    """The only checkpoints are those at which the script was asked to stop: a step that one of them missed
    would be trained, and logged, again."""
    job.deadline = 600.0  # four rounds of real workers, beside whatever else the machine does
    log = job.folder / "log.jsonl"
    job.apply(digits(job, log), replicas=1, minReplicas=1, scaling={"scaleUpDelaySeconds": 0})
    drainable(job, 1, 1)
    change(job, replicas=2)
    drainable(job, 2, 2)
    change(job, replicas=1)
    drainable(job, 3, 1)
    change(job, suspend=True)
    job.wait_for(lambda: job.condition("Suspended").get("status") == "True", "Suspended")
    job.wait_for(lambda: not job.pods(), "the pods are gone")
    change(job, suspend=False)
    drainable(job, 4, 1)
    ends = [entry.get("end", {}) for entry in reversed(job.status()["roundHistory"])][:3]
    assert [(end["cause"], end["drain"]) for end in ends] == [
        ("ScaledUp", "Stopped"),
        ("ScaledDown", "Stopped"),
        ("Suspended", "Stopped"),
    ]
    assert steps_once(log) == {1, 2, 3, 4}


LOST: dict[str, tuple[Callable[[JobRun], object], str, str | None]] = {
    "ends well": (lambda job: (job.folder / "end").touch(), "ScaledDown", "Stopped"),
    "ends well by os._exit(0)": (lambda job: (job.folder / "exit").touch(), "ScaledDown", "Stopped"),
    "its worker is killed": (lambda job: job.kill_worker("job-1-0"), "WorkerFailed", None),
    "its pod is killed": (lambda job: job.kill_pod("job-1-0"), "PodLost", None),
    "the leader, which has stopped, is killed": (lambda job: job.kill_pod("job-0-0"), "PodLost", None),
}
"""What happens to a rank; the cause of the round's end, and how it drained."""
SLOW = [pytest.param(what, marks=pytest.mark.slow) for what in [*LOST][1:]]


@pytest.mark.parametrize("what", ["ends well", *SLOW])
# shows: a member ends well while the round drains, because it had fewer batches
def test_nobody_waits_in_a_drain_for_a_rank_that_does_not_come(job: JobRun, what: str) -> None:
    """Rank 0 has stopped. The other has fewer steps to make: it never comes to the one at which all stop. It
    would have ten minutes for it."""
    happens, cause, drain = LOST[what]
    command = [*TORCHRUN, str(SCRIPTS / "uneven_train.py"), str(job.folder)]
    job.apply(command, replicas=2, minReplicas=1, drainSeconds=600)
    drainable(job, 1, 2)
    change(job, replicas=1)
    message = "neither stopped nor ended: job-1-0"
    job.wait_for(
        lambda: message in job.condition("Training").get("message", ""), "rank 0 waits for the other"
    )
    happens(job)
    job.wait_for(lambda: job.round().get("number") == 2, "the round has ended")
    end = job.status()["roundHistory"][1]["end"]
    assert (end["cause"], end.get("drain")) == (cause, drain)
    assert job.round()["members"] == 1


IN_A_SECOND = (
    "from elasticjob.watch import member_flags; member_flags.FEW_SECONDS = 1.0; "
    "from torch.distributed.run import main; main()"
)
"""torchrun, with less patience for those that do not call should_stop."""


@pytest.mark.parametrize("calls", ["1", pytest.param("0", marks=pytest.mark.slow)])
# shows: some ranks call `should_stop`, and others do not
def test_the_leaders_log_names_those_that_do_not_call_should_stop(job: JobRun, calls: str) -> None:
    """Also where the leader's own worker does not, while others do."""
    command = [str(PYTHON), "-c", IN_A_SECOND, str(SCRIPTS / "one_calls.py"), calls]
    job.apply(command, replicas=2, minReplicas=2)
    other = 1 - int(calls)
    text = f"round 1: not all workers of group rank {other} call should_stop, as others do"
    leader = job.wait_for(lambda: job.round().get("leaderPodName"), "a round")
    job.wait_for(lambda: text in job.log(leader), "the leader's log names it")
    change(job, replicas=1, minReplicas=1)
    job.wait_for(lambda: job.round().get("number") == 2, "the round has ended")
    assert job.status()["roundHistory"][1]["end"]["drain"] == "NotSupported"


@pytest.mark.slow
# shows: a pod is deleted, evicted or preempted, and the script calls `should_stop`
def test_no_step_is_lost_when_members_are_deleted_and_evicted(job: JobRun) -> None:
    """As above: what the script logs is each step once, although both pods are taken away, one as kubectl
    deletes it, and the leader's as kubectl drain does it. Both train on until the next pod has joined, and
    neither calls the other lost."""
    job.deadline = 600.0
    log = job.folder / "log.jsonl"
    job.apply(digits(job, log), replicas=2, minReplicas=2)
    drainable(job, 1, 2)
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", "job-1-0", "--wait=false")
    job.wait_for(lambda: job.round()["phase"] == "Draining", "the round drains")
    lease = ("-n", job.namespace, "get", "lease", "job-1-1", "-o", "name")
    assert job.cluster.kubectl(*lease).stdout, "the next pod has joined"
    drainable(job, 2, 2)
    assert "is lost" not in job.log("job-0-0")
    leader = job.round()["leaderPodName"]
    job.cluster.api.request(
        "POST", f"/api/v1/namespaces/{job.namespace}/pods/{leader}/eviction", evict(leader)
    )
    drainable(job, 3, 2)
    ends = [entry.get("end", {}) for entry in reversed(job.status()["roundHistory"])][:2]
    assert [(end["cause"], end["drain"]) for end in ends] == [
        ("PodDeleted", "Stopped"),
        ("Evicted", "Stopped"),
    ]
    assert steps_once(log) == {1, 2, 3}


@pytest.mark.slow
# shows: the job is deleted, at any moment
def test_pods_of_a_deleted_job_wait_for_no_next_pod(job: JobRun) -> None:
    """Their hooks give the operator ten seconds, and it says nothing. A replacement would have a minute."""
    job.apply(digits(job, job.folder / "log.jsonl"), replicas=2, minReplicas=2)
    drainable(job, 1, 2)
    job.cluster.kubectl("-n", job.namespace, "delete", "elasticjob", job.name, "--wait=false")
    wait_for(lambda: not job.pods(), GONE_SECONDS, "the pods are gone")


@pytest.mark.slow
# shows: a node gets a taint that says that it is about to go (Karpenter, the cluster ...
def test_no_step_is_lost_when_a_node_is_about_to_go(job: JobRun) -> None:
    """The leader's node is tainted. Both train on until the next pod has joined from another node."""
    job.deadline = 600.0
    log = job.folder / "log.jsonl"
    job.apply(digits(job, log), pod=apart(job), replicas=2, minReplicas=2)
    drainable(job, 1, 2)
    leader = job.round()["leaderPodName"]
    node = job.pods()[leader]["spec"]["nodeName"]
    with tainted(job.cluster, node):
        drainable(job, 2, 2)
        assert all(pod["spec"]["nodeName"] != node for pod in job.pods().values() if lives(pod))
    end = job.status()["roundHistory"][1]["end"]
    assert (end["cause"], end["drain"]) == ("Preempted", "Stopped")
    assert f"leaves {node_words(node)}, which has the taint karpenter.sh/disrupted" in job.round()["message"]
    assert steps_once(log) == {1, 2}


def lives(pod: dict[str, Any]) -> bool:
    """Whether the pod is not on its way out."""
    return "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"
