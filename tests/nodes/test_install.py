"""From the Dockerfiles to a job that is Complete, in the words of the documents."""

from __future__ import annotations

import json

import pytest

from charts.generate import NAMESPACE
from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]

USER = 65532


def test_the_operator_runs_and_the_first_job_is_complete(
    installed: Release[KubeletCluster], registry: str
) -> None:
    kubectl = installed.cluster.kubectl
    operators = installed.operators()
    assert {pod["spec"]["nodeName"] for pod in operators.values()} == {"node-a", "node-b"}
    for pod in operators.values():
        (status,) = pod["status"]["containerStatuses"]
        assert status["restartCount"] == 0
        assert status["image"].startswith(f"{registry}/elasticjob-operator:")
    pods = json.loads(kubectl("get", "pods", "-o", "json").stdout)["items"]
    assert {pod["metadata"]["name"] for pod in pods} == {"first-0-0", "first-1-0"}
    assert {pod["status"]["phase"] for pod in pods} == {"Succeeded"}
    assert "step 100: loss 0.0" in kubectl("logs", "first-0-0").stdout


def test_the_operator_is_the_user_of_its_image(installed: Release[KubeletCluster]) -> None:
    (name, *_) = (pod["metadata"]["name"] for pod in installed.operators().values())
    program = "import os, sys; print(os.getuid(), os.access('/', os.W_OK), sys.version_info[:2])"
    answer = installed.cluster.kubectl("-n", NAMESPACE, "exec", name, "--", "python", "-c", program)
    assert answer.stdout.startswith(f"{USER} False (3, 13)")
