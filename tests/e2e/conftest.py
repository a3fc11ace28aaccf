"""Fixtures of the end-to-end tests: the resource installed, an operator for the test's namespace, a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import crd
from devcluster.cluster import Cluster
from tests.e2e.job import ROOT, JobRun, Operator


@pytest.fixture(scope="session")
def installed(devcluster: Cluster) -> Cluster:
    """The session's cluster with the resource definition."""
    crd.install(devcluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
    return devcluster


@pytest.fixture
def operator(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    """An operator that serves the test's namespace; its log is shown when the test fails."""
    running = Operator(installed, namespace, tmp_path / "operator.log")
    yield running
    running.stop()
    print(running.log.read_text()[-8000:])


@pytest.fixture
def job(installed: Cluster, namespace: str, tmp_path: Path, operator: Operator) -> Iterator[JobRun]:
    """A job not yet applied; it is gone, with its pods, before the next test begins."""
    del operator
    run = JobRun(installed, namespace, tmp_path / "run")
    yield run
    print(run.history())
    installed.kubectl("-n", namespace, "delete", "elasticjob", "--all", "--timeout=60s", check=False)
    installed.kubectl("-n", namespace, "delete", "pods", "--all", "--force", "--timeout=60s", check=False)
