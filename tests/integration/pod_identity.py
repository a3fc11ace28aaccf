"""Speaking to the API server as a pod does: with the token that stands in its own volume."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.api import ApiClient, Response
from devcluster.cluster import Cluster
from elasticjob.api.connection import DEFAULT_SERVICE_ACCOUNT_DIR
from elasticjob.contract.names import SERVICE_ACCOUNT_DIR_ENV

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"


def token_file(cluster: Cluster, namespace: str, pod: str) -> Path:
    """Where this machine sees the file that the pod's processes read their token from."""
    pid = cluster.nodes.pids(namespace, pod)[0]
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    told = [entry.partition("=")[2] for entry in environment if entry.startswith(SERVICE_ACCOUNT_DIR_ENV)]
    # /var/run is a link, and an absolute one would lead out of the container's root.
    folder = os.path.realpath(told[0] if told else os.path.dirname(DEFAULT_SERVICE_ACCOUNT_DIR))
    return Path(f"/proc/{pid}/root{folder}", *([] if told else ["serviceaccount"]), "token")


def claims(token: str) -> dict[str, Any]:
    """What the token says of its bearer."""
    body = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return found


@dataclass
class Identity:
    """A pod, by its own token; ``pod`` and ``uid`` are the token's claims."""

    client: ApiClient
    namespace: str
    pod: str
    uid: str
    job: str

    @staticmethod
    def of(cluster: Cluster, namespace: str, pod: str, job: str) -> Identity:
        """That of a running pod."""
        token = token_file(cluster, namespace, pod).read_text()
        bound = claims(token)["kubernetes.io"]["pod"]
        assert bound["name"] == pod
        return Identity(ApiClient(cluster.server, cluster.ca_file, token), namespace, pod, bound["uid"], job)

    def lease(self, name: str = "", query: str = "") -> str:
        """A path in the API."""
        base = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return base + (f"/{name}" if name else "") + (f"?{query}" if query else "")

    def body(self, name: str, **annotations: str) -> dict[str, Any]:
        """A Lease as a participant's handler takes it over."""
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "labels": {"elasticjob.dev/job-name": self.job},
                "annotations": {f"elasticjob.dev/{key}": value for key, value in annotations.items()},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": self.pod, "uid": self.uid}],
            },
            "spec": {"holderIdentity": self.uid},
        }

    def announce(self, **annotations: str) -> Response:
        """Write its own Lease, as a handler does for the first time."""
        path = self.lease(self.pod, "fieldManager=elasticjob&force=true")
        return self.client.request("PATCH", path, self.body(self.pod, **annotations), content_type=APPLY)


@dataclass(frozen=True)
class Request:
    """One request, and the answer that it must get: a status, and words of the message."""

    method: str
    path: str
    body: Any = None
    content_type: str = JSON
    expected: int = 403
    says: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def wrong(self, client: ApiClient) -> str:
        """Send it. Returns what is wrong with the answer, or nothing."""
        answer = client.request(
            self.method, self.path, self.body, content_type=self.content_type, headers=self.headers
        )
        if answer.status == self.expected and self.says in answer.text:
            return ""
        return (
            f"{self.method} {self.path} {json.dumps(self.body)[:200]}: "
            f"expected {self.expected} {self.says}, got {answer.status} {answer.text[:300]}"
        )
