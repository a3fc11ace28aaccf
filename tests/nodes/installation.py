"""The operator installed by a reader of the documents, and what the reader then sees."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from devcluster.kubelet.cluster import KubeletCluster
from tests.chart.release import Release


@dataclass(frozen=True)
class Installation:
    """What there was when the commands of the documents had ended: faults of later tests change it."""

    release: Release[KubeletCluster]
    operators: list[dict[str, Any]]
    """Its pods."""
    first_job: dict[str, dict[str, Any]]
    """The pods of the README's first job, by name."""
    first_log: str
    """That of the job's first pod."""


def install(release: Release[KubeletCluster], registry: str) -> Installation:
    """Install the chart with its defaults in a namespace that enforces `restricted`.

    Returns when the first job of the README is Complete.
    """
    release.words("docs/operate/install.md", "images", REGISTRY=registry)
    release.words("docs/operate/install.md", "namespace")
    release.words("README.md", "install", REGISTRY=registry)
    kubectl = release.cluster.kubectl
    pods = json.loads(kubectl("get", "pods", "-o", "json").stdout)["items"]
    return Installation(
        release=release,
        operators=list(release.operators().values()),
        first_job={pod["metadata"]["name"]: pod for pod in pods},
        first_log=kubectl("logs", "first-0-0").stdout,
    )
