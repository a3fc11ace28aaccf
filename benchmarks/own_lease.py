"""The Lease of a participant that is played, written as the handler's `LeaseWriter` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from elasticjob.contract import names

MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"


@dataclass
class OwnLease:
    """The Lease of one pod. ``version`` is that of the last write; without one, a write takes it over."""

    namespace: str
    job: str
    pod: str
    uid: str
    version: str = ""

    def write(self, annotations: Mapping[str, str]) -> tuple[str, dict[str, Any], str]:
        """Path, body and content type of a PATCH that says this and renews."""
        renew = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata: dict[str, Any] = {
            "labels": {names.JOB_LABEL: self.job},
            "annotations": dict(annotations),
        }
        body: dict[str, Any] = {
            "metadata": metadata,
            "spec": {"holderIdentity": self.uid, "renewTime": renew},
        }
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        path = f"{leases}/{self.pod}?fieldManager=elasticjob"
        if self.version:
            metadata |= {"resourceVersion": self.version, **names.UNTRACKED}
            return path, body, MERGE
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self.pod, "uid": self.uid}
        metadata |= {"name": self.pod, "ownerReferences": [owner]}
        body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        return f"{path}&force=true", body, _APPLY

    def written(self, answer: Mapping[str, Any]) -> None:
        """The API server has taken a write, and answered with the Lease."""
        self.version = str(answer["metadata"]["resourceVersion"])
