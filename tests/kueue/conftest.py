"""Kueue beside the session's control plane, and an operator that heeds it, with the rights of the chart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.kueue import Kueue
from tests.e2e.job import JobRun, Operator
from tests.integration.lifecycle_job import PlayedJob
from tests.kueue.stage import ON, Stage, started


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long, and how often, chance acts on jobs in queues: ``make test-kueue ARGS="--operations 500"``."""
    parser.addoption("--operations", type=int, default=30, help="random operations of test_random_operations")
    parser.addoption("--seed", type=int, default=7, help="of the random operations")


@pytest.fixture(scope="session")
def kueue(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Kueue:
    """Kueue's manager, and the operator's account with the rights to use it."""
    return started(installed, ON, tmp_path_factory.mktemp("helm"))


@pytest.fixture
def operator(kueue: Kueue, installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    """An operator that serves the test's namespace and heeds Kueue."""
    del kueue
    with Operator(installed, namespace, tmp_path / "operator.log", flags=["--kueue"]) as running:
        yield running


@pytest.fixture
def stage(operator: Operator, installed: Cluster, namespace: str) -> Iterator[Stage]:
    """Queues to be made; they are gone before the next test begins, and the namespace's jobs as well."""
    made = Stage(installed, namespace)
    yield made
    if operator.process.poll() is not None:
        operator.restart()
    installed.kubectl("-n", namespace, "delete", "elasticjob", "--all", "--timeout=60s", check=False)
    installed.kubectl("-n", namespace, "delete", "pods", "--all", "--force", "--timeout=60s", check=False)
    made.clean_up()


@pytest.fixture
def job(stage: Stage, installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[JobRun]:
    """A job not yet applied, that trains with torchrun."""
    del stage
    run = JobRun(installed, namespace, tmp_path / "run")
    yield run
    print(run.history())


@pytest.fixture
def played(stage: Stage, installed: Cluster, namespace: str) -> PlayedJob:
    """A job not yet applied, whose participants the test plays."""
    del stage
    return PlayedJob(installed, namespace)
