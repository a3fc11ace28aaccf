"""The fixtures of tests that need a cluster, and the dump of a namespace when such a test fails.

One cluster serves a whole session; each test has its own namespace in it. With DEVCLUSTER_KUBECONFIG set to
the path of a kubeconfig, tests run against that cluster instead, and those marked `devcluster`, which break
components, are skipped.

pytest loads this module by itself once the package is installed. A conftest.py can override the fixture
`devcluster_options`; the setting `devcluster_dump` names the resources that a failed test shows.
"""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Generator, Iterable, Iterator

import pytest

from devcluster.access import ClusterAccess
from devcluster.build import chosen_kubernetes
from devcluster.cluster import Cluster
from devcluster.commands import Options
from devcluster.control_plane import ControlPlane
from devcluster.existing import ExistingCluster, existing_kubeconfig
from devcluster.wait import wait_for

_DUMPED = "devcluster_dump"
_DUMPED_LOG_LINES = 50
_DUMP_TIMEOUT_SECONDS = 15.0
_NAMESPACE_TIMEOUT_SECONDS = 60.0
_LONGEST_NAME = 63


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a project say what a failed test shows."""
    parser.addini(
        _DUMPED,
        "resources of a failed test's namespace that its report shows",
        type="args",
        default=["pods", "events"],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; refuse a version of Kubernetes that can't be built."""
    try:
        chosen_kubernetes()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.addinivalue_line(
        "markers", "devcluster: breaks components of a cluster; skipped on an existing cluster"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what would break an existing cluster."""
    kubeconfig = existing_kubeconfig()
    if kubeconfig is None:
        return
    reason = f"breaks components of a cluster, and the one of {kubeconfig} is not ours"
    for item in items:
        if item.get_closest_marker("devcluster"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def devcluster_options() -> Options:
    """Options of the session's cluster; override it in a conftest.py."""
    return Options()


@pytest.fixture(scope="session")
def cluster(devcluster_options: Options) -> Iterator[ClusterAccess]:
    """The session's cluster: a devcluster with three nodes, or the existing one of DEVCLUSTER_KUBECONFIG."""
    kubeconfig = existing_kubeconfig()
    if kubeconfig is not None:
        yield ExistingCluster(kubeconfig)
        return
    with Cluster(options=devcluster_options) as started:
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
        report.sections.extend(_dump(cluster, namespace, item.config.getini(_DUMPED)))
    return report


def _dump(cluster: ClusterAccess, namespace: str, kinds: Iterable[str]) -> Iterator[tuple[str, str]]:
    for kind in kinds:
        # One request per kind: where a CRD is not installed, the rest is still worth seeing.
        command = ["get", kind, "-n", namespace, "-o", "yaml", "--request-timeout=10s"]
        try:
            answer = cluster.kubectl(*command, check=False, timeout=_DUMP_TIMEOUT_SECONDS)
            text = answer.stdout + answer.stderr
        except (subprocess.TimeoutExpired, OSError) as error:
            text = str(error)
        yield f"{kind} in {namespace}", text
    if isinstance(cluster, ControlPlane):
        for folder in cluster.pod_logs:
            for file in sorted(folder.glob(f"{namespace}_*/*/*.log")):
                lines = file.read_text(errors="replace").splitlines()[-_DUMPED_LOG_LINES:]
                yield f"end of {file.relative_to(folder)}", "\n".join(lines)
