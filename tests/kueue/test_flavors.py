"""Pods of a queued job run on the nodes of the flavor whose quota it uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster
from tests.integration.lifecycle_job import PlayedJob
from tests.kueue.queued_job import all_run, submit
from tests.kueue.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

POOL = "test.example/pool"


@pytest.fixture
def pools(stage: Stage, installed: Cluster) -> Iterator[tuple[str, str]]:
    """Values of the label POOL: of node-a, and of node-b, which has a taint of that value, too."""
    first, second = f"{stage.namespace[-6:]}-1", f"{stage.namespace[-6:]}-2"
    installed.kubectl("label", "node", "node-a", f"{POOL}={first}")
    installed.kubectl("label", "node", "node-b", f"{POOL}={second}")
    installed.kubectl("taint", "node", "node-b", f"{POOL}={second}:NoSchedule")
    try:
        yield first, second
    finally:
        installed.kubectl("taint", "node", "node-b", f"{POOL}-")
        installed.kubectl("label", "node", "node-a", "node-b", f"{POOL}-")


def nodes(job: PlayedJob) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in job.pods().values()}


def test_pods_go_where_the_flavor_says(stage: Stage, played: PlayedJob, pools: tuple[str, str]) -> None:
    """To nodes with its labels, and with its tolerations."""
    toleration = {"key": POOL, "operator": "Equal", "value": pools[1], "effect": "NoSchedule"}
    stage.queue("a", 2, stage.flavor({POOL: pools[1]}, tolerations=[toleration]))
    submit(played, replicas=2, minReplicas=1)
    all_run(played, 2)
    assert nodes(played) == {"node-b"}
    for pod in played.pods().values():
        assert pod["spec"]["nodeSelector"] == {POOL: pools[1]}
        assert toleration in pod["spec"]["tolerations"]


def test_an_extra_waits_for_the_flavor_of_its_base_while_another_is_free(
    stage: Stage, played: PlayedJob, pools: tuple[str, str]
) -> None:
    first = stage.flavor({POOL: pools[0]}, "first")
    second = stage.flavor({POOL: pools[1]}, "second")
    stage.queue("a", 3, first, second)
    stage.ask("other", "a", 1, priority=1000)
    played.wait_for(lambda: stage.admitted("other"), "another has a third of the first flavor")
    submit(played, replicas=3, minReplicas=2)
    all_run(played, 2)
    said = played.says("queue a admits 2 of 3 pods: couldn't assign flavors to pod set main")
    assert f"flavor {second} doesn't match node affinity" in said
    used = {name: one.flavors for name, one in stage.of_job(played).items() if one.holds_quota}
    assert used == {"base": (first,)}
    stage.withdraw("other")
    all_run(played, 3)
    assert nodes(played) == {"node-a"}
    assert {one.flavors for one in stage.of_job(played).values()} == {(first,)}
