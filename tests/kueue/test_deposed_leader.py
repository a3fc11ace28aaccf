"""A deposed operator writes no Workload: the chart's policy refuses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.contract.names import JOB_LABEL
from tests.chart.helm import Helm
from tests.kueue.stage import DEADLINE, ON, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

RELEASE = "deposed"
"""Not the release whose account the operators of these tests have."""


@pytest.fixture
def user(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[str]:
    """An operator's account in whose release the policy is on, and another pod leads. It has all rights."""
    chart = Helm(tmp_path / "helm")
    only = (
        "--show-only",
        "templates/leader-policy.yaml",
        "--values",
        chart.values_file({**ON, "fullnameOverride": RELEASE}),
    )
    where = ("--namespace", namespace, "--kube-version=1.30.0")
    policy = chart.run("template", RELEASE, str(chart.chart), *where, *only).stdout
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": RELEASE, "namespace": namespace},
        "spec": {"holderIdentity": "another-pod_1"},
    }
    rights = ("clusterrolebinding", f"{RELEASE}-{namespace}")
    installed.kubectl("create", "-f", "-", input=json.dumps(lease))
    subject = f"--serviceaccount={namespace}:{RELEASE}"
    installed.kubectl("create", *rights, "--clusterrole=cluster-admin", subject)
    installed.kubectl("apply", "-f", "-", input=policy)
    try:
        yield f"system:serviceaccount:{namespace}:{RELEASE}"
    finally:
        installed.kubectl("delete", "-f", "-", input=policy)
        installed.kubectl("delete", *rights)


# shows: a deposed operator writes
def test_a_deposed_operator_writes_no_workload(stage: Stage, user: str, installed: Cluster) -> None:
    stage.queue("a", 1, stage.flavor())
    stage.ask("mine", "a", 1)
    installed.kubectl("-n", stage.namespace, "label", "workload", "mine", f"{JOB_LABEL}=mnist")

    def refused(*change: str) -> bool:
        asked = installed.kubectl(
            f"--as={user}", "-n", stage.namespace, *change, "--dry-run=server", check=False
        )
        return "does not lead; the leader is another-pod_1" in asked.stderr

    status = ("patch", "workload", "mine", "--subresource=status", "--type=merge", "-p", '{"status": {}}')
    for change in (
        ("annotate", "workload", "mine", "a=b", "--overwrite"),
        status,
        ("delete", "workload", "mine"),
    ):
        wait_for(partial(refused, *change), DEADLINE, f"refused: {change[0]}")
    assert stage.workload("mine") is not None
