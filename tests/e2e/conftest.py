"""The job of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from tests.e2e.job import JobRun, Operator


@pytest.fixture
def job(installed: Cluster, namespace: str, tmp_path: Path, operator: Operator) -> Iterator[JobRun]:
    """A job not yet applied; it is gone, with its pods, before the next test begins."""
    del operator
    run = JobRun(installed, namespace, tmp_path / "run")
    yield run
    print(run.history())
    installed.kubectl("-n", namespace, "delete", "elasticjob", "--all", "--timeout=60s", check=False)
    installed.kubectl("-n", namespace, "delete", "pods", "--all", "--force", "--timeout=60s", check=False)
