"""Pods of jobs with a PodGroup, placed by a real scheduler on nodes each of which has room for one pod."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from devcluster.cluster import Cluster
from devcluster.component import Component
from tests.e2e.job import Operator
from tests.gang.gangs import COSCHEDULING, KUBERNETES, PLACED, Gang
from tests.gang.placed_job import PlacedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

Make = Callable[[str], PlacedJob]
SETTLED = 5.0
"""Seconds after which the scheduler has looked at all pods that it can."""
LOOKS_AGAIN = 420.0
"""Seconds after which the plugin Coscheduling does, where a node has become free: no event makes it look at
pods that it has rejected for the sake of another, so they wait until it tries all again (5 minutes)."""
# As a scheduler lists pods that starts, by name, these jobs take turns: a-0-0, a-0-0-0, a-0-1-0, a-1-0.
TAKING_TURNS = ("a", "a-0")


@contextmanager
def cordoned(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """No further pod is placed on these nodes."""
    cluster.kubectl("cordon", *nodes)
    yield
    cluster.kubectl("uncordon", *nodes)


@pytest.fixture(params=PLACED, ids=lambda gang: gang.name)
def gang(request: pytest.FixtureRequest) -> Gang:
    """Each whose scheduler runs here."""
    chosen: Gang = request.param
    return chosen


def submit_at_once(scheduler: Component, make: Make, grouped: bool = True) -> tuple[PlacedJob, PlacedJob]:
    """Two jobs of two pods each, on three nodes. The scheduler sees all pods at the same time."""
    scheduler.stop()
    first, second = (make(name) for name in TAKING_TURNS)
    for one in (first, second):
        one.submit(2, grouped=grouped)
    for one in (first, second):
        one.has(live=2, placed=0)
    scheduler.start()
    return first, second


def test_two_jobs_that_would_deadlock_half_placed_do_not(
    installed: Cluster, scheduler: Component, job: Make
) -> None:
    with cordoned(installed, installed.node_names[0]):
        first, second = submit_at_once(scheduler, job)
        first.wait_for(
            lambda: sorted(len(one.placed()) for one in (first, second)) == [0, 2], "one is placed"
        )
        time.sleep(SETTLED)
        assert sorted(len(one.placed()) for one in (first, second)) == [0, 2]
        lucky, other = (first, second) if first.placed() else (second, first)
        other.wait_for(lambda: other.speaks_of("not scheduled"), "the other says why it waits")
        assert lucky.group()["metadata"]["ownerReferences"][0]["uid"] == lucky.get()["metadata"]["uid"]
        lucky.delete()
        other.has(live=2, placed=2)


@pytest.mark.parametrize("gang", [KUBERNETES], ids=["Kubernetes"], indirect=True)
def test_without_gang_scheduling_they_do(installed: Cluster, scheduler: Component, job: Make) -> None:
    """What the test above is about: each holds a node for which the other waits. Not with the plugin
    Coscheduling, which sorts pods in another order: one job may get both nodes."""
    with cordoned(installed, installed.node_names[0]):
        first, second = submit_at_once(scheduler, job, grouped=False)
        first.has(live=2, placed=1)
        second.has(live=2, placed=1)
        assert (first.groups(), first.group()) == ({""}, {})
        time.sleep(SETTLED)
        assert (len(first.placed()), len(second.placed())) == (1, 1)


def test_it_starts_with_the_least_and_grows(installed: Cluster, job: Make) -> None:
    one = job("grows")
    with cordoned(installed, installed.node_names[0]):
        one.submit(3, minimum=2)
        one.has(live=3, placed=2)
        assert (one.minimum(), one.groups()) == (2, {"grows-elasticjob"})
    one.has(live=3, placed=3)


def test_a_lost_pod_is_replaced_by_itself_where_enough_are_left(job: Make) -> None:
    one = job("replaced")
    one.submit(3, minimum=2)
    one.has(live=3, placed=3)
    one.kubectl("delete", "pod", "replaced-2-0")
    one.runs("replaced-0-0", "replaced-1-0", "replaced-2-1")


@pytest.mark.timeout(900)
def test_below_the_minimum_the_next_pods_are_placed_together(
    installed: Cluster, job: Make, gang: Gang
) -> None:
    """One of two places is free, so neither of the two pods that are missing gets it."""
    one = job("below")
    one.submit(3, minimum=3)
    one.has(live=3, placed=3)
    with cordoned(installed, one.live()["below-0-0"]["spec"]["nodeName"]):
        one.kubectl("delete", "pod", "below-0-0", "below-1-0")
        one.has(live=3, placed=1)
        one.wait_for(lambda: one.speaks_of("not scheduled"), "it says why they wait")
        time.sleep(SETTLED)
        assert len(one.placed()) == 1
    one.has(live=3, placed=3, seconds=LOOKS_AGAIN if gang is COSCHEDULING else None)


def test_pods_below_the_minimum_are_held_and_the_job_says_so(job: Make, gang: Gang) -> None:
    """Kubernetes' own scheduler writes nothing about them, the plugin does."""
    one = job("held")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    one.create({**quota, "spec": {"hard": {"pods": "2"}}})
    one.wait_for(
        lambda: (
            "two" in one.kubectl("get", "quota", "-o", "jsonpath={.items[?(@.status.hard)].metadata.name}")
        ),
        "the quota is in force",
    )
    one.submit(3)
    says = {
        KUBERNETES: "the scheduler holds 2 pods until 3 can be placed together",
        COSCHEDULING: "cannot find enough sibling pods, current pods number: 2, minMember of group: 3",
    }
    one.wait_for(lambda: one.speaks_of(says[gang]), "the job says it")
    assert one.condition("Training")["reason"] == "WaitingForPods"
    conditions = [bool(pod["status"].get("conditions")) for pod in one.live().values()]
    assert conditions == [gang is COSCHEDULING] * 2
    one.kubectl("delete", "quota", "two")
    one.kubectl("annotate", "elasticjob", one.name, "room=yes")
    one.has(live=3, placed=3)
    one.wait_for(lambda: not one.speaks_of("the scheduler holds"), "nothing is said of it")


def test_a_lower_minimum_lets_a_job_start_that_waits(installed: Cluster, job: Make) -> None:
    one = job("lowered")
    with cordoned(installed, installed.node_names[0]):
        one.submit(3, minimum=3)
        one.has(live=3, placed=0)
        one.wait_for(lambda: one.speaks_of("not scheduled"), "it waits")
        one.patch(minReplicas=2)
        one.has(live=3, placed=2)
        assert (one.minimum(), one.groups()) == (2, {"lowered-elasticjob"})


def test_a_lower_minimum_holds_for_pods_that_replace_others(installed: Cluster, job: Make) -> None:
    """On Kubernetes 1.36 the group stays as it was while pods are in it, and later pods are in none."""
    one = job("later")
    one.submit(3, minimum=3)
    one.has(live=3, placed=3)
    one.patch(minReplicas=1)
    if not one.fixed:
        one.wait_for(lambda: one.minimum() == 1, "the group is changed")
    with cordoned(installed, one.live()["later-0-0"]["spec"]["nodeName"]):
        one.kubectl("delete", "pod", "later-0-0", "later-1-0")
        one.has(live=3, placed=2)
        assert (one.minimum(), one.groups()) == (
            3 if one.fixed else 1,
            {"later-elasticjob", *[""] * one.fixed},
        )


def test_a_suspended_job_has_the_group_of_its_next_start(job: Make) -> None:
    one = job("again")
    one.submit(2, minimum=2)
    one.has(live=2, placed=2)
    one.patch(suspend=True)
    one.no_pods()
    one.patch(suspend=False, replicas=3, minReplicas=3)
    one.has(live=3, placed=3)
    assert (one.minimum(), one.groups()) == (3, {"again-elasticjob"})


def test_the_group_goes_with_its_job(job: Make) -> None:
    one = job("gone")
    one.submit(1)
    one.has(live=1, placed=1)
    one.delete()
    one.wait_for(lambda: not one.group(), "the group is gone")


def test_an_operator_that_starts_again_changes_no_group(job: Make, operator: Operator) -> None:
    one = job("restart")
    one.submit(2)
    one.has(live=2, placed=2)
    group, pod = one.group()["metadata"]["uid"], one.pods()["restart-1-0"]["metadata"]["uid"]
    operator.kill()
    operator.restart()
    one.kubectl("delete", "pod", "restart-1-0")
    one.has(live=2, placed=2)
    assert pod not in {found["metadata"]["uid"] for found in one.live().values()}
    assert (one.group()["metadata"]["uid"], one.groups()) == (group, {"restart-elasticjob"})
