"""The operator as a process: both ways to start it, and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import crd
from devcluster.access import ClusterAccess
from devcluster.wait import wait_for
from tests import operator_account

pytestmark = pytest.mark.cluster

CRD = Path(__file__).parents[2] / "crds" / "elasticjobs.elasticjob.dev.yaml"
BIN = Path(sys.executable).parent
WAYS = {
    "console script": [str(BIN / "elasticjob-operator")],
    "python -m": [sys.executable, "-m", "elasticjob_operator"],
    "kopf run": [str(BIN / "kopf"), "run", "-m", "elasticjob_operator.app"],
}


@pytest.mark.parametrize("command", WAYS.values(), ids=WAYS)
def test_every_way_to_start_it(
    cluster: ClusterAccess, namespace: str, tmp_path: Path, command: list[str]
) -> None:
    crd.install(cluster, CRD)
    with (tmp_path / "log").open("wb") as log:
        operator = subprocess.Popen(
            [*command, "--namespace", namespace],
            env={
                **os.environ,
                "KUBECONFIG": str(operator_account.config(cluster)),
                "ELASTICJOB_NAMESPACES": namespace,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        job = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "alone", "namespace": namespace},
            "spec": {"replicas": 2},
        }
        cluster.kubectl("apply", "-f", "-", input=json.dumps(job))

        def found() -> dict[str, object]:
            answer = cluster.kubectl("-n", namespace, "get", "elasticjob", "alone", "-o", "json")
            body: dict[str, object] = json.loads(answer.stdout)
            return body

        wait_for(
            lambda: "WaitingForPods" in json.dumps(found().get("status", {})),
            60,
            "the first status",
            interval=0.2,
        )
        metadata = found()["metadata"]
        assert isinstance(metadata, dict)
        assert "finalizers" not in metadata
        assert set(metadata["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
        operator.terminate()
        assert operator.wait(timeout=60) == 0
    finally:
        operator.kill()
        operator.wait()
        print((tmp_path / "log").read_text()[-3000:])
