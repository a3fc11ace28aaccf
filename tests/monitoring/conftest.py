"""One stage for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster
from tests.monitoring.stage import Stage


@pytest.fixture(scope="session")
def stage(devcluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The operator, Prometheus, and no job."""
    made = Stage(devcluster, tmp_path_factory.mktemp("monitoring"))
    yield made
    made.stop()
    print(made.operator.log.read_text()[-8000:])
