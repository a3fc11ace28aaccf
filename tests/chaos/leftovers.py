"""What must not be there when a job has ended, and when it has been deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from devcluster.api import ApiClient
from elasticjob.contract.names import members_lease, round_lease

_LISTS = {
    "ElasticJobs": "/apis/elasticjob.dev/v1alpha1/namespaces/{}/elasticjobs",
    "pods": "/api/v1/namespaces/{}/pods",
    "Leases": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "Roles": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBindings": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ServiceAccounts": "/api/v1/namespaces/{}/serviceaccounts",
}


def processes(namespace: str, folder: Path) -> list[str]:
    """Processes of pods of the namespace, or with the training's folder in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        of_pod = any(v.startswith(b"ELASTICJOB_POD_NAME=") for v in environment) and any(
            namespace.encode() in v for v in environment
        )
        if of_pod or str(folder).encode() in command:
            found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode(errors='replace')[:120]}")
    return found


def leases_of_nobody(api: ApiClient, namespace: str, job: str) -> list[str]:
    """Leases of the namespace that belong neither to a pod nor to the job that are there; ``job`` "": without
    an operator."""
    pods = {item["metadata"]["uid"] for item in _items(api, "pods", namespace)}
    jobs = {
        item["metadata"]["uid"]
        for item in (_items(api, "ElasticJobs", namespace) if job else ())
        if item["metadata"]["name"] == job
    }
    found = []
    for lease in _items(api, "Leases", namespace):
        owners = {o["uid"] for o in lease["metadata"].get("ownerReferences", ())}
        its_own = bool(job) and lease["metadata"]["name"] in (round_lease(job), members_lease(job))
        of_live = owners & (jobs if its_own else pods)
        if not of_live:
            found.append(lease["metadata"]["name"])
    return found


def objects(api: ApiClient, namespace: str) -> list[str]:
    """What is in the namespace that was not in it when it was made."""
    return [
        f"{kind}: {item['metadata']['name']}"
        for kind in _LISTS
        for item in _items(api, kind, namespace)
        if (kind, item["metadata"]["name"]) != ("ServiceAccounts", "default")
    ]


def _items(api: ApiClient, kind: str, namespace: str) -> list[dict[str, Any]]:
    answer = api.request("GET", _LISTS[kind].format(namespace))
    if not answer.ok:
        raise RuntimeError(f"{kind} can't be listed: {answer.status} {answer.text[:200]}")
    found: list[dict[str, Any]] = answer.json()["items"]
    return found
