"""The pytest plugin in a project that has installed the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from devcluster.cluster import Cluster

pytestmark = pytest.mark.devcluster

CONFTEST = """
import pytest
from devcluster.commands import DEPLOYMENTS, Options

@pytest.fixture(scope="session")
def devcluster_options():
    return Options(further_controllers=DEPLOYMENTS)
"""
TESTS = """
import pytest

def test_that_fails(cluster, namespace):
    cluster.kubectl("create", "-n", namespace, "configmap", "in-the-report")
    assert False

@pytest.mark.devcluster
def test_that_breaks_components(devcluster):
    devcluster.component("scheduler").restart()
    assert "deployment-controller" in " ".join(devcluster.component("controller-manager")._argv)
"""
SETTINGS = """
[pytest]
addopts = --strict-markers
devcluster_dump = configmaps events
"""


def run_pytest(folder: Path, variables: Mapping[str, str]) -> str:
    """The report of a run in a folder that is no part of this project."""
    for name, text in (("conftest.py", CONFTEST), ("test_it.py", TESTS), ("pytest.ini", SETTINGS)):
        (folder / name).write_text(text)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "."],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return finished.stdout + finished.stderr


def test_a_project_that_installs_the_package_has_the_fixtures(tmp_path: Path) -> None:
    report = run_pytest(tmp_path, {})
    assert "1 failed, 1 passed" in report, report
    assert "configmaps in test-that-fails-" in report
    assert "name: in-the-report" in report


def test_on_an_existing_cluster_nothing_is_broken(devcluster: Cluster, tmp_path: Path) -> None:
    report = run_pytest(tmp_path, {"DEVCLUSTER_KUBECONFIG": str(devcluster.kubeconfig)})
    assert "1 failed, 1 skipped" in report, report
    assert "name: in-the-report" in report
    assert "is not ours" in report


def test_a_version_of_kubernetes_that_is_not_there_is_refused_before_any_test(tmp_path: Path) -> None:
    report = run_pytest(tmp_path, {"DEVCLUSTER_KUBERNETES": "1.2"})
    assert "ERROR: devcluster can't build Kubernetes 1.2: it has 1." in report
