"""helm, the chart as it renders it, and a cluster to install it into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from charts.generate import NAMESPACE
from devcluster.cluster import Cluster
from devcluster.commands import DEPLOYMENTS, Options
from tests.chart.helm import Helm
from tests.chart.release import Release


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm without a cluster; built the first time."""
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def packed(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as `helm package` packs it: with the definition's content in place of the link."""
    folder = tmp_path_factory.mktemp("packed")
    helm.run("package", str(helm.chart), "--destination", str(folder))
    (archive,) = folder.glob("*.tgz")
    return archive


@pytest.fixture(scope="module")
def cluster_without_nodes() -> Iterator[Cluster]:
    """It warns of every pod that is not a restricted one, also in templates."""
    with Cluster(nodes=0, options=Options(further_controllers=DEPLOYMENTS)) as cluster:
        for name in (NAMESPACE, "team-a", "team-b"):
            cluster.kubectl("create", "namespace", name)
        for mode in ("enforce", "warn"):
            label = f"pod-security.kubernetes.io/{mode}=restricted"
            cluster.kubectl("label", "namespace", NAMESPACE, label)
        yield cluster


@pytest.fixture
def release(cluster_without_nodes: Cluster, tmp_path: Path) -> Iterator[Release[Cluster]]:
    """Nothing is installed, and nothing is left of what the test installs."""
    made = Release(cluster_without_nodes, tmp_path)
    yield made
    if "elasticjob" in made.helm.run("list", "--namespace", NAMESPACE, "--short").stdout.split():
        made.uninstall()
