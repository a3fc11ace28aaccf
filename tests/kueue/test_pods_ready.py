"""With little patience of Kueue's (``waitForPodsReady``): what does not get ready is evicted, and no more."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests.integration.lifecycle_job import PlayedJob
from tests.kueue.queued_job import all_run, apply
from tests.kueue.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

TIMEOUT, RECOVERY = 45, 6
"""Seconds for a start, in which the test has to play those who join, and for the return of a lost pod."""


@pytest.fixture(scope="module", autouse=True)
def impatient(kueue: Kueue) -> Iterator[None]:
    """Kueue with these limits, which tries again soon."""
    limits = {
        "timeout": f"{TIMEOUT}s",
        "recoveryTimeout": f"{RECOVERY}s",
        "requeuingStrategy": {"backoffBaseSeconds": 2},
    }
    with kueue.configured({"waitForPodsReady": limits}):
        yield


def uid(job: PlayedJob, pod: str) -> str:
    """Of this pod; without it ""."""
    found = job.pods().get(pod)
    return str(found["metadata"]["uid"]) if found else ""


def test_an_extra_whose_pod_never_joins_goes_alone(stage: Stage, played: PlayedJob) -> None:
    soon = {"lastCallTimeoutSeconds": 1, "initialLastCallTimeoutSeconds": 2, "rejoinTimeoutSeconds": 5}
    apply(stage, played, replicas=3, rendezvous=soon, scaling={"scaleUpDelaySeconds": 0})
    first = all_run(played, 3)
    third = uid(played, first[2])
    played.join(*first[:2])
    assert played.round(1)["members"] == 2
    played.wait_for(
        lambda: "x0" in stage.of_job(played) and not stage.of_job(played)["x0"].live, "the extra goes", 120
    )
    assert stage.of_job(played)["base"].live
    played.wait_for(lambda: uid(played, first[2]) != third, "its pod is gone")
    second = all_run(played, 3)
    assert second[:2] == first[:2]
    assert played.status()["currentRound"]["number"] == 1
    played.join(*second[:2], second[2])
    assert played.round(2)["members"] == 3


def test_a_base_that_was_evicted_for_a_lost_pod_gets_its_whole_time_again(
    stage: Stage, played: PlayedJob, installed: Cluster
) -> None:
    """Kueue would count from the loss of the pod, in the life before."""
    apply(stage, played, replicas=2)
    names = all_run(played, 2)
    played.join(*names)
    played.round(1)
    played.wait_for(lambda: stage.of_job(played)["base"].ready, "Kueue knows that it has started")
    installed.kubectl("cordon", *installed.node_names)
    try:
        played.kubectl("delete", "pod", names[-1], "--wait=false")
        played.wait_for(lambda: stage.of_job(played)["base"].must_leave, "Kueue asks for the quota")
        played.no_pods()
    finally:
        installed.kubectl("uncordon", *installed.node_names)
    names = all_run(played, 2)
    until = time.monotonic() + 2 * RECOVERY
    while time.monotonic() < until:
        assert stage.of_job(played)["base"].live, "it is evicted at once"
        time.sleep(0.5)  # the length of what is watched, not a wait for anything
    played.join(*names)
    played.round(2)
    played.wait_for(lambda: stage.of_job(played)["base"].ready, "it has started again")
    assert set(played.pods()) == set(names)
