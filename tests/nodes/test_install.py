"""From the Dockerfiles to a job that is Complete, in the words of the documents."""

from __future__ import annotations

import pytest

from charts.generate import NAMESPACE
from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release
from tests.nodes.installation import Installation

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]

USER = 65532


def test_the_operator_runs_and_the_first_job_is_complete(installation: Installation, registry: str) -> None:
    assert {pod["spec"]["nodeName"] for pod in installation.operators} == {"node-a", "node-b"}
    for pod in installation.operators:
        (status,) = pod["status"]["containerStatuses"]
        assert status["restartCount"] == 0
        assert status["image"].startswith(f"{registry}/elasticjob-operator:")
    assert set(installation.first_job) == {"first-0-0", "first-1-0"}
    assert {pod["status"]["phase"] for pod in installation.first_job.values()} == {"Succeeded"}
    assert "step 100: loss 0.0" in installation.first_log


def test_helm_test_trains_a_job(installed: Release[KubeletCluster]) -> None:
    assert "Phase:          Succeeded" in installed.words("docs/operate/install.md", "helm-test")


def test_the_operator_is_the_user_of_its_image(installed: Release[KubeletCluster]) -> None:
    (name, *_) = (pod["metadata"]["name"] for pod in installed.operators().values())
    program = "import os, sys; print(os.getuid(), os.access('/', os.W_OK), sys.version_info[:2])"
    answer = installed.cluster.kubectl("-n", NAMESPACE, "exec", name, "--", "python", "-c", program)
    assert answer.stdout.startswith(f"{USER} False (3, 13)")


def test_certificates_that_a_strict_client_rejects_are_named_once(installation: Installation) -> None:
    """The cluster's authority has no key usage, and its certificates no key identifiers."""
    assert len(installation.operator_logs) == 2
    for log in installation.operator_logs.values():
        (said,) = (line for line in log.splitlines() if "no authority key identifier" in line)
        assert "accepting the API server's certificate as kubectl does" in said
        assert "the CA certificate has no key usage" in said
