"""What must not be there when a job has ended, and when it has been deleted; and the logs, which are kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.contract.names import members_lease, round_lease

_LISTS = {
    "ElasticJobs": "/apis/elasticjob.dev/v1alpha1/namespaces/{}/elasticjobs",
    "pods": "/api/v1/namespaces/{}/pods",
    "Leases": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "Roles": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBindings": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ServiceAccounts": "/api/v1/namespaces/{}/serviceaccounts",
}

CLEAN_SECONDS = 90.0


def stay(find: Callable[[], list[str]], what: str) -> list[str]:
    """Wait until nothing is found any more; else a sentence that says what is."""
    try:
        wait_for(lambda: not find(), CLEAN_SECONDS, what, interval=0.5)
    except TimeoutError:
        return [f"{what} are left over: {'; '.join(find())}"]
    return []


def keep_logs(cluster: Cluster, namespace: str, folder: Path) -> None:
    """The pods' logs go with the cluster: copy them."""
    for path in (cluster.nodes_dir / "logs").glob(f"{namespace}_*/*/*.log"):
        kept = folder / "logs" / "-".join(path.relative_to(path.parents[2]).parts)
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(path, kept)


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
