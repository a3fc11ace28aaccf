"""One cluster of two nodes with kubelets, with the operator installed as the documents tell to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release
from tests.nodes import base_images
from tests.nodes.job import Recovery

_COMMANDS_SECONDS = 1200.0


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubeletCluster]:
    """Two nodes, and what stands for the images of others where they pull."""
    with KubeletCluster(2) as started:
        base_images.provide(started.images)
        yield started


@pytest.fixture(scope="session")
def registry(cluster: KubeletCluster) -> str:
    """$REGISTRY of the documents."""
    return f"{cluster.registry}/ml"


@pytest.fixture(scope="session")
def release(cluster: KubeletCluster, tmp_path_factory: pytest.TempPathFactory) -> Release[KubeletCluster]:
    """The reader of the documents, who has built the images and nothing else yet."""
    made = Release(cluster, tmp_path_factory.mktemp("helm"), _COMMANDS_SECONDS)
    cluster.images.docker(made.tools())
    made.helm.environment.update(cluster.images.environment | made.helm.environment)
    return made


@pytest.fixture(scope="session")
def installed(release: Release[KubeletCluster], registry: str) -> Release[KubeletCluster]:
    """The operator installed with the chart's defaults in a namespace that enforces `restricted`; the first
    job of the README is Complete."""
    release.words("docs/operate/install.md", "images", REGISTRY=registry)
    release.words("docs/operate/install.md", "namespace")
    release.words("README.md", "install", REGISTRY=registry)
    return release


_recoveries: list[Recovery] = []


@pytest.fixture
def table() -> Callable[[Recovery], None]:
    """Adds a row to the table at the end of the run."""
    return _recoveries.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of faults."""
    if not _recoveries:
        return
    terminalreporter.section("faults on real nodes")
    for line in rows(_recoveries):
        terminalreporter.write_line(line)


def rows(recoveries: Iterable[Recovery]) -> Iterator[str]:
    """The table as Markdown."""
    yield "| fault | cause, account | detected | next round | next step | resumed from |"
    yield "|---|---|---|---|---|---|"
    for one in recoveries:
        detected = "-" if one.detected_milliseconds is None else f"{one.detected_milliseconds / 1000:.1f} s"
        yield (
            f"| {one.fault} | {one.cause}, {one.account} | {detected} | {one.next_round:.1f} s "
            f"| {one.next_step:.1f} s | {one.resumed_from} |"
        )
