"""The resource of this tree is installed."""

from __future__ import annotations

import pytest

from crds import generate
from devcluster import crd
from devcluster.access import ClusterAccess


@pytest.fixture(scope="module", autouse=True)
def _installed(cluster: ClusterAccess) -> None:
    crd.install(cluster, generate.CRD_FILE)
