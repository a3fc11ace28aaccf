"""A cluster with PodGroups and the schedulers that heed them, and an operator that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster import coscheduling
from devcluster.build import chosen_kubernetes
from devcluster.cluster import Cluster
from devcluster.commands import Options, with_pod_groups
from devcluster.component import Component
from tests.chart import added_rights
from tests.e2e.job import Operator
from tests.gang.gangs import ALL, COSCHEDULING, KUBERNETES, Gang
from tests.gang.placed_job import PlacedJob

ON = {"gangScheduling": {gang.name.lower(): True for gang in ALL}}
"""The chart's values."""


@pytest.fixture(scope="session")
def devcluster_options() -> Options:
    """Of the version that DEVCLUSTER_KUBERNETES names: its API of PodGroups."""
    return with_pod_groups(Options(further_controllers=["resourcequota-controller"]), chosen_kubernetes())


@pytest.fixture(scope="session")
def coscheduler(installed: Cluster) -> Component:
    """The scheduler with the plugin Coscheduling."""
    return coscheduling.start(installed)


@pytest.fixture
def gang() -> Gang:
    """The kind of PodGroup that the test's jobs have."""
    return KUBERNETES


@pytest.fixture
def scheduler(gang: Gang, installed: Cluster, request: pytest.FixtureRequest) -> Component:
    """The one that places the pods of the test's jobs."""
    if gang is COSCHEDULING:
        component: Component = request.getfixturevalue("coscheduler")
        return component
    return installed.component("scheduler")


@pytest.fixture(scope="session")
def rights_given(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the chart's values add to the operator's account."""
    added_rights.give(installed, ON, tmp_path_factory.mktemp("helm"))


@pytest.fixture
def operator(rights_given: None, installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    """An operator that serves the test's namespace and makes PodGroups."""
    del rights_given
    flags = [f"--gang-scheduling={gang.name}" for gang in ALL]
    with Operator(installed, namespace, tmp_path / "operator.log", flags=flags) as running:
        yield running


@pytest.fixture
def job(
    operator: Operator, installed: Cluster, namespace: str, gang: Gang, scheduler: Component | None
) -> Iterator[Callable[[str], PlacedJob]]:
    """Jobs not yet applied, by name. At the end the nodes are free, and can be used."""
    del operator
    made: list[PlacedJob] = []

    def make(name: str) -> PlacedJob:
        made.append(PlacedJob(installed, namespace, name, gang))
        return made[-1]

    yield make
    if scheduler is not None and not scheduler.running:
        scheduler.start()
    installed.kubectl("uncordon", *installed.node_names)
    for one in made:
        one.kubectl("delete", "elasticjob", one.name, "--ignore-not-found")
        one.no_pods()
