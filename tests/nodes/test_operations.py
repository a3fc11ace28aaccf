"""What people do with a job and with its operator while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release
from tests.nodes.job import BOTH, DigitsJob, NodesJob
from tests.nodes.table import Recovery

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]

Table = Callable[[Recovery], None]


@BOTH
def test_it_is_scaled(job: DigitsJob, table: Table) -> None:
    struck = time.time()
    job.scale(3)
    up = job.recovered("kubectl scale, from 2 to 3", struck, members=3)
    table(up)
    assert (up.cause, up.account) == ("ScaledUp", "scaling")
    assert f"{job.name}-2-0 joined: growing from 2 to 3 members" in up.message
    job.takes_part()  # else the round is too young to drain
    pods = [job.member(rank) for rank in range(3)]
    nodes = [job.node_of(pod) for pod in pods]
    struck = time.time()
    job.scale(1)
    down = job.recovered("kubectl scale, from 3 to 1", struck, up.round, members=1)
    table(down)
    assert (down.cause, down.account) == ("ScaledDown", "scaling")
    assert "scaled down from 3 to 1 member" in down.message
    stays = max(range(3), key=lambda rank: (nodes.count(nodes[rank]), -rank))
    assert job.member(0) == pods[stays], "the lowest rank stays, of the node that has the most"
    job.wait_for(lambda: len(job.pods()) == 1, "the others are gone")


@BOTH
def test_it_is_suspended_and_resumed(job: DigitsJob, table: Table) -> None:
    job.patch(suspend=True)
    job.wait_for(lambda: not job.pods(), "its pods are gone")
    job.wait_for(
        lambda: job.condition("Suspended")["message"].startswith("suspended: the job has no running pods"),
        "the condition says that they are gone",
    )
    struck = time.time()
    job.patch(suspend=False)
    found = job.recovered("resumed after it was suspended", struck, members=2)
    table(found)
    assert (found.cause, found.account) == ("Suspended", "scaling")
    assert found.message.startswith("the job was suspended")
    assert job.status()["currentRound"]["cause"] == "Resumed"
    assert job.status()["currentRound"]["message"] == "the job was resumed"
    assert job.status().get("restarts", 0) == 0, "it is not charged"


def test_the_chart_is_upgraded_and_rolled_back(
    job: NodesJob, installed: Release[KubeletCluster], registry: str
) -> None:
    pods = set(job.pods())
    before = set(installed.operators())
    installed.words("docs/operate/upgrades.md", "upgrade", REGISTRY=registry)
    installed.words("docs/operate/install.md", "change", REGISTRY=registry)
    between = set(installed.operators())
    assert job.goes_on() == 1, "and each step follows the one before, as below"
    installed.words("docs/operate/upgrades.md", "rollback", REGISTRY=registry)
    assert not before & between, "each is a new operator"
    assert not between & set(installed.operators())
    assert job.goes_on() == 1
    assert set(job.pods()) == pods


def test_the_handler_s_image_cannot_be_pulled(
    new_job: Callable[..., NodesJob], installed: Release[KubeletCluster]
) -> None:
    """The job says so in the kubelet's words. Pods that wait keep the image that they were made with, so they
    are deleted when the operator names one that can be pulled."""
    values = ["--reset-then-reuse-values", "--namespace", "elasticjob-system", "--wait"]
    installed.helm.run(
        "upgrade", "elasticjob", str(installed.helm.chart), *values, "--set", "handler.image.tag=none"
    )
    job = new_job()
    try:
        installed.operators()
        job.apply()
        said = job.says("ErrImagePull")
        print(said)
        assert "elasticjob-handler:none" in said
    finally:
        installed.helm.run("rollback", "elasticjob", "--namespace", "elasticjob-system", "--wait")
    installed.operators()
    job.kubectl("delete", "pods", "--all", "--wait=false")
    job.training(members=2)
    assert job.goes_on() == 1
    assert job.steps()[0]["step"] == 1
