"""The resource installed in the session's cluster, and an operator for the test's namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from tests.e2e.job import ROOT, Operator


@pytest.fixture(scope="session")
def installed(devcluster: Cluster) -> Cluster:
    """The session's cluster with the resource definition."""
    crd.install(devcluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
    return devcluster


@pytest.fixture
def operator(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    """An operator that serves the test's namespace; its log is shown when the test fails."""
    with Operator(installed, namespace, tmp_path / "operator.log") as running:
        yield running
