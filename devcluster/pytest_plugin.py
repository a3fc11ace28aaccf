"""The fixtures of tests that need a cluster, and the dump of a namespace when such a test fails.

One cluster serves a whole session; a test has a namespace of its own in it. With
`ELASTICJOB_TEST_EXISTING_CLUSTER=1` and KUBECONFIG (or KUBECONFIG_UNDER_TEST) the tests run against that
cluster instead, and the ones marked `devcluster`, which break components, are skipped.

To be enabled in a conftest.py by `pytest_plugins = ["devcluster.pytest_plugin"]`.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from devcluster.access import ClusterAccess
from devcluster.cluster import Cluster
from devcluster.commands import AUTOSCALING, DISRUPTION, Options
from devcluster.existing import ExistingCluster
from devcluster.wait import wait_for

_DUMPED_KINDS = ("elasticjobs", "pods", "leases", "events")
_DUMPED_LOG_LINES = 50
_DUMP_TIMEOUT_SECONDS = 15.0
_NAMESPACE_TIMEOUT_SECONDS = 60.0
_TOKEN_SECONDS = 10.0
"""Every test of pods is one of tokens that are replaced, too."""
_LONGEST_NAME = 63


def existing_kubeconfig() -> Path | None:
    """The kubeconfig of the cluster that the user wants tested instead of one of ours."""
    if os.environ.get("ELASTICJOB_TEST_EXISTING_CLUSTER") != "1":
        return None
    path = os.environ.get("KUBECONFIG_UNDER_TEST") or os.environ.get("KUBECONFIG")
    return Path(path) if path else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what would break the user's cluster."""
    kubeconfig = existing_kubeconfig()
    if kubeconfig is None:
        return
    reason = f"breaks components, which those of {kubeconfig} must not be: needs a devcluster of its own"
    for item in items:
        if item.get_closest_marker("devcluster"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterAccess]:
    """The session's cluster: a devcluster with three nodes, or the user's own."""
    kubeconfig = existing_kubeconfig()
    if kubeconfig is not None:
        yield ExistingCluster(kubeconfig)
        return
    options = Options(further_controllers=(DISRUPTION, AUTOSCALING), token_seconds=_TOKEN_SECONDS)
    with Cluster(options=options) as started:
        yield started


@pytest.fixture(scope="session")
def devcluster(cluster: ClusterAccess) -> Cluster:
    """The session's cluster with its faults, for tests marked `devcluster`. Leave it as you found it."""
    if not isinstance(cluster, Cluster):
        pytest.skip("needs a devcluster: mark the test `devcluster`")
    return cluster


@pytest.fixture
def namespace(cluster: ClusterAccess, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new namespace in which pods can be made; its deletion is begun, not awaited, after the test."""
    suffix = f"-{secrets.token_hex(3)}"
    stem = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = stem[: _LONGEST_NAME - len(suffix)].rstrip("-") + suffix
    cluster.kubectl("create", "namespace", name)
    wait_for(
        lambda: (
            cluster.kubectl(
                "get", "-n", name, "sa/default", "configmap/kube-root-ca.crt", check=False
            ).returncode
            == 0
        ),
        _NAMESPACE_TIMEOUT_SECONDS,
        f"the namespace {name} has its service account and root certificate",
        interval=0.2,
    )
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false", check=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the namespace of a failed test holds to its report, while it is still there."""
    report = yield
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    cluster, namespace = arguments.get("cluster"), arguments.get("namespace")
    if (
        report.failed
        and call.when == "call"
        and isinstance(cluster, ClusterAccess)
        and isinstance(namespace, str)
    ):
        report.sections.extend(_dump(cluster, namespace))
    return report


def _dump(cluster: ClusterAccess, namespace: str) -> Iterator[tuple[str, str]]:
    for kind in _DUMPED_KINDS:
        # In one request per kind: where the CRD is not installed, the rest is still worth seeing.
        command = ["get", kind, "-n", namespace, "-o", "yaml", "--request-timeout=10s"]
        try:
            answer = cluster.kubectl(*command, check=False, timeout=_DUMP_TIMEOUT_SECONDS)
            text = answer.stdout + answer.stderr
        except (subprocess.TimeoutExpired, OSError) as error:
            text = str(error)
        yield f"{kind} in {namespace}", text
    if isinstance(cluster, Cluster):
        for file in sorted((cluster.nodes_dir / "logs").glob(f"{namespace}_*/*/*.log")):
            lines = file.read_text(errors="replace").splitlines()[-_DUMPED_LOG_LINES:]
            yield f"end of {file.relative_to(cluster.nodes_dir / 'logs')}", "\n".join(lines)
