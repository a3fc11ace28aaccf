"""The largest status that a job can have is taken by the real API server, and planned from again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devcluster.cluster import Cluster
from elasticjob_operator.observe.spec import read_job
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import Now, Observed
from elasticjob_operator.plan.state.status import JobStatus
from elasticjob_operator.plan.state.status_size import MAX_STATUS_BYTES, trim
from tests.full_status import MEMBERS, NAME, WALL, full

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]


CONTAINER = {"name": "train", "image": "none", "command": ["torchrun", "train.py"]}


def write(cluster: Cluster, namespace: str, status: JobStatus) -> int:
    """Write it as the operator does; the HTTP status of the answer."""
    path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs/{NAME}/status"
    patch = [{"op": "add", "path": "/status", "value": status_json.dump(status)}]
    answer = cluster.api.request("PATCH", path, patch, content_type="application/json-patch+json")
    return answer.status


def made(cluster: Cluster, namespace: str, replicas: int, **template: Any) -> dict[str, Any]:
    body = {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": NAME},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [CONTAINER]}, **template}},
    }
    cluster.kubectl("-n", namespace, "create", "-f", "-", input=json.dumps(body))
    return found(cluster, namespace)


def found(cluster: Cluster, namespace: str) -> dict[str, Any]:
    path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs/{NAME}"
    raw: dict[str, Any] = cluster.read(path)
    return raw


# shows: the status of a job of thousands would be larger than 1.1 MiB, or the object larger ...
def test_a_status_in_which_every_list_is_full_is_taken_and_planned_from(
    installed: Cluster, namespace: str
) -> None:
    made(installed, namespace, MEMBERS)
    status = trim(full())
    assert write(installed, namespace, full()) != 200, "untrimmed it is not"
    assert write(installed, namespace, status) == 200
    raw = found(installed, namespace)
    whole = len(json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode())
    fields = len(json.dumps(raw["metadata"]["managedFields"], separators=(",", ":")))
    print(f"{whole} bytes, managedFields {fields}")
    assert fields < 10_000, "what the operator has written counts in etcd, too"
    assert whole < MAX_STATUS_BYTES + 20_000
    view = read_job(raw)
    assert view.status == status
    decided = plan(view.job, view.status, Observed(), Now(WALL, 1.0, "nonce"), {})
    assert write(installed, namespace, decided.status) == 200
    assert read_job(found(installed, namespace)).status == decided.status
