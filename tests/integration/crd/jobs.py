"""Jobs as users write them, and what kubectl says of them."""

from __future__ import annotations

import json
from typing import Any

from devcluster.access import ClusterAccess

CONTAINER = {"name": "train", "image": "train", "command": ["torchrun", "train.py"]}
TEMPLATE: dict[str, Any] = {"spec": {"containers": [CONTAINER]}}


def manifest(name: str = "digits", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def apply(cluster: ClusterAccess, namespace: str, job: dict[str, Any]) -> str:
    """Apply like a user; what kubectl says. Raises KubectlError if it is refused."""
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job)).stdout


def refusal(cluster: ClusterAccess, namespace: str, job: dict[str, Any]) -> str:
    """Apply what must be refused; what kubectl says."""
    answer = cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job), check=False)
    assert answer.returncode != 0, f"accepted: {answer.stdout}"
    return answer.stderr


def get(cluster: ClusterAccess, namespace: str, name: str = "digits") -> dict[str, Any]:
    answer = cluster.kubectl("get", "-n", namespace, "ej", name, "-o", "json")
    job: dict[str, Any] = json.loads(answer.stdout)
    return job


def template(**changes: Any) -> dict[str, Any]:
    """A minimal template whose pod spec has these fields besides."""
    return {"spec": {"containers": [CONTAINER], **changes}}
