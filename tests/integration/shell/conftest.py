"""Fixtures of the tests of the shell: the resource, and an operator that has its own rights only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devcluster.access import ClusterAccess
from devcluster.wait import wait_for
from tests import operator_account
from tests.integration.shell.scene import ACCOUNT, DEADLINE, Scene

CRD = Path(__file__).parents[3] / "crds" / "elasticjobs.elasticjob.dev.yaml"


@pytest.fixture(scope="module")
def api_server(cluster: ClusterAccess) -> ClusterAccess:
    """The session's cluster with the resource installed."""
    cluster.apply(CRD)
    wait_for(
        lambda: cluster.kubectl("get", "elasticjobs", check=False).returncode == 0,
        DEADLINE,
        "elasticjobs are served",
    )
    return cluster


@pytest.fixture(scope="module")
def account(api_server: ClusterAccess) -> Path:
    """A kubeconfig with the operator's rights."""
    return operator_account.config(api_server)


@pytest.fixture(autouse=True)
def kubeconfig(api_server: ClusterAccess, account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is an administrator; its operators are not."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.setenv(ACCOUNT, str(account))


@pytest.fixture
async def scene(namespace: str, kubeconfig: None) -> AsyncIterator[Scene]:
    """What a test plays in; its namespace has nothing in it yet."""
    del kubeconfig
    scene = Scene(namespace)
    yield scene
    await scene.admin.aclose()
