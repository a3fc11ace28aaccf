"""Fixtures of the integration tests that look at a job as its user does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import PlayedJob


@pytest.fixture
def job(installed: Cluster, namespace: str, operator: Operator) -> Iterator[PlayedJob]:
    """A job not yet applied, whose participants the test plays; the operator is real."""
    del operator
    yield PlayedJob(installed, namespace)
    installed.kubectl("-n", namespace, "delete", "elasticjob", "--all", "--timeout=60s", check=False)
