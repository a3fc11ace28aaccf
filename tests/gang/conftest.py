"""A cluster with PodGroups and the scheduler that heeds them, and an operator that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.build import chosen_kubernetes
from devcluster.cluster import Cluster
from devcluster.commands import Options, with_pod_groups
from tests import operator_account
from tests.chart.helm import Helm, objects
from tests.e2e.job import Operator
from tests.gang.placed_job import PlacedJob

ON = {"gangScheduling": {"kubernetes": True}}
"""The chart's value."""
_RIGHTS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture(scope="session")
def devcluster_options() -> Options:
    """Of the version that DEVCLUSTER_KUBERNETES names: its API of PodGroups."""
    return with_pod_groups(Options(further_controllers=["resourcequota-controller"]), chosen_kubernetes())


@pytest.fixture(scope="session")
def rights_given(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the chart's value adds to the operator's account."""
    operator_account.config(installed)
    rendered = objects(Helm(tmp_path_factory.mktemp("helm")).template(ON))
    given = [one for one in rendered if one["kind"] in _RIGHTS and not _is_hook(one)]
    installed.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(given))


@pytest.fixture
def operator(rights_given: None, installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    """An operator that serves the test's namespace and makes PodGroups."""
    del rights_given
    running = Operator(installed, namespace, tmp_path / "operator.log", flags=["--gang-scheduling"])
    yield running
    running.stop()
    print(running.log.read_text()[-8000:])


@pytest.fixture
def job(operator: Operator, installed: Cluster, namespace: str) -> Iterator[Callable[[str], PlacedJob]]:
    """Jobs not yet applied, by name. At the end the nodes are free, and can be used."""
    del operator
    made: list[PlacedJob] = []

    def make(name: str) -> PlacedJob:
        made.append(PlacedJob(installed, namespace, name))
        return made[-1]

    yield make
    if not installed.component("scheduler").running:
        installed.component("scheduler").start()
    installed.kubectl("uncordon", *installed.node_names)
    for one in made:
        one.kubectl("delete", "elasticjob", one.name, "--ignore-not-found")
        one.no_pods()


def _is_hook(one: dict[str, Any]) -> bool:
    return "helm.sh/hook" in (one["metadata"].get("annotations") or {})
