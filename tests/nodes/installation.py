"""The operator installed by a reader of the documents, and what the reader then sees."""

from __future__ import annotations

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
    operator_logs: dict[str, str]
    """Theirs, by name."""
    first_job: dict[str, dict[str, Any]]
    """The pods of the README's first job, by name."""
    first_log: str
    """That of the job's first pod."""
