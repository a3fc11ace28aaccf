"""Two nodes with kubelets and an operator installed as documented, and two stand-in nodes to compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from charts.generate import NAMESPACE
from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.commands import Options
from devcluster.control_plane import ControlPlane
from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release
from tests.e2e.job import Operator
from tests.nodes import base_images
from tests.nodes.installation import Installation
from tests.nodes.job import ROOT, DigitsJob, NodesJob, StandInJob
from tests.nodes.table import Recovery, table_of

_COMMANDS_SECONDS = 1200.0


# Order


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The installation comes first, as a reader meets it, and what the stand-in plays comes last."""
    install = Path(__file__).with_name("test_install.py")
    items.sort(key=lambda item: (item.path != install, "[played]" in item.nodeid))


# Clusters


@pytest.fixture(scope="session")
def kubelets() -> Iterator[KubeletCluster]:
    """Two nodes, and what stands for the images of others where they pull.

    The certificates lack what only a strict client asks for, such as the operator's Python.
    """
    with KubeletCluster(2, options=Options(bare_authority=True)) as started:
        base_images.provide(started.images)
        yield started


@pytest.fixture(scope="session")
def played() -> Iterator[Cluster]:
    """Two nodes that are played."""
    with Cluster(2) as started:
        crd.install(started, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
        yield started


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> ControlPlane:
    """The test's: that with kubelets unless its parameter names another fixture."""
    found: ControlPlane = request.getfixturevalue(getattr(request, "param", "kubelets"))
    return found


# The operator


@pytest.fixture(scope="session")
def registry(kubelets: KubeletCluster) -> str:
    """$REGISTRY of the documents."""
    return f"{kubelets.registry}/ml"


@pytest.fixture(scope="session")
def release(kubelets: KubeletCluster, tmp_path_factory: pytest.TempPathFactory) -> Release[KubeletCluster]:
    """The reader of the documents, who has built the images and nothing else yet."""
    made = Release(kubelets, tmp_path_factory.mktemp("helm"), _COMMANDS_SECONDS)
    kubelets.images.docker(made.tools())
    made.helm.environment.update(kubelets.images.environment | made.helm.environment)
    return made


@pytest.fixture(scope="session")
def installation(release: Release[KubeletCluster], registry: str) -> Installation:
    """The chart installed with its defaults in a namespace that enforces `restricted`, and the first job."""
    release.words("docs/operate/install.md", "images", REGISTRY=registry)
    release.words("docs/operate/install.md", "namespace")
    release.words("README.md", "install", REGISTRY=registry)
    kubectl = release.cluster.kubectl
    pods = json.loads(kubectl("get", "pods", "-o", "json").stdout)["items"]
    operators = list(release.operators().values())
    names = [pod["metadata"]["name"] for pod in operators]
    return Installation(
        release=release,
        operators=operators,
        operator_logs={name: kubectl("-n", NAMESPACE, "logs", name).stdout for name in names},
        first_job={pod["metadata"]["name"]: pod for pod in pods},
        first_log=kubectl("logs", "first-0-0").stdout,
    )


@pytest.fixture(scope="session")
def installed(installation: Installation) -> Release[KubeletCluster]:
    """The release of the operator that is installed."""
    return installation.release


# Jobs


@pytest.fixture
def new_job(
    cluster: ControlPlane, namespace: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., DigitsJob]]:
    """Makes a job by its name (default: `job`), not applied yet; its pods are gone after the test."""
    jobs: list[DigitsJob] = []
    operator: Operator | None = None
    if isinstance(cluster, KubeletCluster):
        request.getfixturevalue("installed")
    else:
        operator = Operator(cluster, namespace, tmp_path / "operator.log")

    def make(name: str = "job") -> DigitsJob:
        folder = tmp_path / name
        if isinstance(cluster, KubeletCluster):
            jobs.append(NodesJob(cluster, namespace, folder, name))
        else:
            assert isinstance(cluster, Cluster)
            jobs.append(StandInJob(cluster, namespace, folder, name))
        return jobs[-1]

    yield make
    for one in jobs:
        if one.get():
            print(one.kubectl("describe", "elasticjob", one.name))
            one.end()
    if operator is not None:
        operator.stop()
        print(operator.log.read_text()[-8000:])


@pytest.fixture
def job(new_job: Callable[[], DigitsJob]) -> DigitsJob:
    """A job of two pods on two nodes that has written some checkpoints."""
    run = new_job()
    run.apply()
    run.training(members=2)
    run.wait_for(lambda: len(run.steps()) > 60, "some checkpoints are written")
    assert {run.node_of(pod) for pod in run.pods()} == {"node-a", "node-b"}
    return run


# The table


_recoveries: list[Recovery] = []


@pytest.fixture
def table() -> Callable[[Recovery], None]:
    """Adds a row to the table at the end of the run."""
    return _recoveries.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of faults."""
    if not _recoveries:
        return
    terminalreporter.section("faults")
    for line in table_of(_recoveries):
        terminalreporter.write_line(line)
