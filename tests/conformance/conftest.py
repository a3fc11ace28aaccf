"""Fixtures of the conformance tests: one control plane, one operator and one zygote for all of them.

Each test runs twice: in an ElasticJob, and as a run without operator. What is an operator's alone is marked
so.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.zygote import Zygote
from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.commands import Options
from devcluster.existing import existing_kubeconfig
from tests.conformance import peer_run
from tests.conformance.agents import Stage
from tests.conformance.peer_run import PeerRun
from tests.conformance.pods import CONTROLLERS, NAMESPACE, Job, prepare
from tests.e2e.job import ROOT, Operator


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane without nodes: the pods are the tests' own processes."""
    if existing_kubeconfig() is not None:
        pytest.skip("plays its pods itself, which a cluster with controllers of its own would undo")
    with Cluster(nodes=0, options=Options(controllers=CONTROLLERS)) as started:
        crd.install(started, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
        prepare(started)
        peer_run.prepare(started)
        yield started


@pytest.fixture(scope="session")
def namespace(cluster: Cluster) -> str:
    """All jobs are in one, which one operator serves; each test leaves it empty."""
    del cluster
    return NAMESPACE


@pytest.fixture(scope="session")
def operator(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """The operator, a process of its own."""
    running = Operator(cluster, namespace, tmp_path_factory.mktemp("operator") / "operator.log")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that agents are forked from."""
    modules = (
        "torch.distributed.launcher.api",
        "torch.distributed.run",
        "elasticjob.agent.create",
        "tests.conformance.bodies",
        "tests.conformance.work",
    )
    with Zygote(modules) as started:
        yield started


KINDS: dict[str, type[Job]] = {"operator": Job, "peers": PeerRun}


HANDLER_ALONE = "tests.conformance.test_rendezvous"
"""Its tests are of bare handlers, and quick."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with an operator, without one, or both. Of those for both, tests of whole agents are slow
    ones without an operator."""
    if "stage" not in metafunc.fixturenames:
        return
    alone = [kind for kind in KINDS if metafunc.definition.get_closest_marker(f"{kind}_alone") is not None]
    slow = [] if metafunc.module.__name__ == HANDLER_ALONE else [pytest.mark.slow]
    both = ["operator", pytest.param("peers", marks=slow)]
    metafunc.parametrize("stage", alone or both, indirect=True)


@pytest.fixture
def stage(
    cluster: Cluster, operator: Operator, zygote: Zygote, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Stage]:
    """A job not yet created, and its agents; what they and the operator said is shown when the test fails."""
    stem = re.sub("[^a-z0-9]+", "-", request.node.originalname.lower().removeprefix("test_"))
    name = f"{stem[:30].strip('-')}-{secrets.token_hex(3)}"
    offset = operator.log.stat().st_size
    with Stage(cluster, zygote, name, tmp_path, KINDS[request.param]) as ready:
        yield ready
    with operator.log.open("rb") as log:
        log.seek(offset)
        print("--- operator\n" + log.read().decode(errors="replace")[-6000:])
