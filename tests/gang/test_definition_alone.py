"""PodGroups whose resource definition is there and whose scheduler is not: no pod is placed.

Of Volcano this is all that is tested. This file is the first one by name: a later one starts the scheduler
with the plugin Coscheduling, which would lose sight of a definition that is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from tests.e2e.job import Operator
from tests.gang.gangs import COSCHEDULING, VOLCANO, Gang
from tests.gang.placed_job import PlacedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

Make = Callable[[str], PlacedJob]

MISSING = {
    "Coscheduling": "scheduling.x-k8s.io/v1alpha1; have an administrator install the resource definition",
    "Volcano": "scheduling.volcano.sh/v1beta1; have an administrator install Volcano",
}
NOT_RUNNING = {
    "Coscheduling": "'scheduler-plugins-scheduler' (schedulerName of the template)",
    "Volcano": "'volcano' (for spec.gangScheduling)",
}


@pytest.fixture(params=[COSCHEDULING, VOLCANO], ids=lambda gang: gang.name, scope="module")
def gang(request: pytest.FixtureRequest) -> Gang:
    """Each that is installed by a resource definition."""
    chosen: Gang = request.param
    return chosen


@pytest.fixture
def scheduler() -> None:
    """None runs."""


@pytest.fixture
def definition(gang: Gang, installed: Cluster) -> Path:
    """Its file; it is applied."""
    file = gang.definition()
    crd.install(installed, file)
    return file


def test_a_job_waits_until_they_are_installed(
    installed: Cluster, job: Make, gang: Gang, definition: Path
) -> None:
    installed.kubectl("delete", "-f", str(definition))
    one = job("early")
    one.submit(2)
    text = f"the PodGroup cannot be written: the cluster has none of {MISSING[gang.name]}"
    one.wait_for(lambda: one.speaks_of(text), "the job says what is missing")
    assert one.live() == {}
    crd.install(installed, definition)
    one.has(live=2, placed=0)
    assert (one.minimum(), one.groups()) == (2, {"early-elasticjob"})


def test_pods_name_the_group_and_the_job_says_that_no_scheduler_runs(
    job: Make, gang: Gang, definition: Path
) -> None:
    del definition
    one = job("alone")
    one.submit(3, minimum=2)
    one.has(live=3, placed=0)
    assert (one.minimum(), one.groups()) == (2, {"alone-elasticjob"})
    expected = gang.scheduler or "volcano"
    assert {pod["spec"]["schedulerName"] for pod in one.live().values()} == {expected}
    assert one.group()["metadata"]["ownerReferences"][0]["uid"] == one.get()["metadata"]["uid"]
    text = f"is a scheduler {NOT_RUNNING[gang.name]} running?"
    one.wait_for(lambda: one.speaks_of(text), "the job says it")
    one.delete()
    one.wait_for(lambda: not one.group(), "the group goes with its job")


def test_a_new_minimum_changes_the_group_and_an_operator_that_starts_again_does_not(
    job: Make, gang: Gang, definition: Path, operator: Operator
) -> None:
    del definition
    one = job("changed")
    one.submit(3, minimum=3)
    one.has(live=3, placed=0)
    before, pods = one.group(), uids(one)
    one.patch(minReplicas=1)
    one.wait_for(lambda: one.minimum() == 1, "the group is changed")
    operator.kill()
    operator.restart()
    one.kubectl("delete", "pod", "changed-0-0")
    one.wait_for(lambda: len(uids(one) - pods) == 1, "the pod is made again")
    after = one.group()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == {**before["spec"], "minMember": 1}
    assert before["spec"].get("queue") == ("default" if gang is VOLCANO else None)
    assert (len(one.live()), one.groups()) == (3, {"changed-elasticjob"})


def uids(job: PlacedJob) -> set[str]:
    return {pod["metadata"]["uid"] for pod in job.live().values()}
