"""A job with a PodGroup in a queue of the real Kueue: the queue decides on quota, the scheduler on nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests.e2e.job import Operator
from tests.gang.conftest import ON
from tests.gang.gangs import KUBERNETES
from tests.gang.placed_job import CPU, PlacedJob
from tests.gang.test_placing import cordoned
from tests.kueue import stage as kueue_stage
from tests.kueue.stage import POD_CPU, Stage, labels

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

A_POD = CPU * 1000 // POD_CPU
"""What a pod of the job uses, in the unit of the stage's quotas."""


@pytest.fixture(scope="module")
def kueue(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Kueue:
    """Kueue's manager, and the operator's account with the rights to use it and to make PodGroups."""
    return kueue_stage.started(installed, {**ON, **kueue_stage.ON}, tmp_path_factory.mktemp("helm"))


@pytest.fixture
def operator(kueue: Kueue, installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    """An operator that heeds both."""
    del kueue
    flags = ["--kueue", f"--gang-scheduling={KUBERNETES.name}"]
    with Operator(installed, namespace, tmp_path / "operator.log", flags=flags) as running:
        yield running


@pytest.fixture
def stage(operator: Operator, installed: Cluster, namespace: str) -> Iterator[Stage]:
    """Queues to be made."""
    del operator
    made = Stage(installed, namespace)
    yield made
    installed.kubectl("-n", namespace, "delete", "elasticjob", "--all", "--timeout=60s")
    made.clean_up()


def test_what_the_queue_admits_is_placed_together_and_what_it_takes_back_leaves_the_group_alone(
    installed: Cluster, stage: Stage, job: Callable[[str], PlacedJob]
) -> None:
    stage.queue("a", 2 * A_POD, stage.flavor())
    one = job("queued")
    one.labels = labels("a")
    with cordoned(installed, *installed.node_names[:2]):
        one.submit(3, minimum=2)
        one.has(live=2, placed=0)  # admitted, and there is room for one
        one.wait_for(lambda: one.speaks_of("not scheduled"), "it says why they wait")
    one.has(live=2, placed=2)
    assert (one.minimum(), one.groups()) == (2, {"queued-elasticjob"})

    _set_quota(installed, stage, "a", 3 * A_POD)
    one.has(live=3, placed=3)

    stage.ask("other", "a", A_POD, priority=500)
    one.wait_for(lambda: stage.admitted("other"), "the other has the quota of the third pod")
    one.runs("queued-0-0", "queued-1-0")
    assert one.minimum() == 2

    stage.withdraw("other")
    one.has(live=3, placed=3)


def _set_quota(cluster: Cluster, stage: Stage, queue: str, pods: int) -> None:
    path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
    change = [{"op": "replace", "path": path, "value": f"{pods * POD_CPU}m"}]
    name = stage.cluster_queue(queue)
    cluster.kubectl("patch", "clusterqueue", name, "--type=json", "-p", json.dumps(change))
