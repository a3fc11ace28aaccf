"""Who may write what: the job's ServiceAccount, Role and RoleBinding.

A pod's identity may read the job's round Lease and write the Leases that bear the names of the job's pods
(design, section 11); an admission policy in the chart narrows the latter to the pod's own name. All three
objects are owned by the job. They are written by server-side apply: one request, idempotent, and remembered,
so that a pass that changes nothing asks nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from elasticjob.contract.names import JOB_LABEL, round_lease
from elasticjob_operator.act.template import job_identity, owner_reference, service_account
from elasticjob_operator.observe.client import APPLY_PATCH, Api
from elasticjob_operator.plan.model import Job

FIELD_MANAGER = "elasticjob-operator"
_ROUND_ENDING = round_lease("")


@dataclass(frozen=True)
class Access:
    """What the job's pods may do, as plain data: equal means that nothing is to be written."""

    own_account: bool
    subjects: tuple[str, ...]
    pod_names: tuple[str, ...]

    def includes(self, other: Access) -> bool:
        """Whether whoever has this access has the other too."""
        return (
            self.own_account == other.own_account
            and set(self.subjects) >= set(other.subjects)
            and set(self.pod_names) >= set(other.pod_names)
        )


def access_of(job: Job, pod_names: tuple[str, ...], accounts_seen: tuple[str, ...]) -> Access:
    """The access that a job needs. ``accounts_seen`` are the service accounts of its pods: they count for
    a job without template, whose pods are somebody else's. Whoever makes such a pod chooses its name: one
    that could be a round Lease's, of this job or another, gives no right."""
    names = tuple(sorted(name for name in pod_names if not name.endswith(_ROUND_ENDING)))
    if job.spec.template is None:
        return Access(own_account=False, subjects=accounts_seen, pod_names=names)
    theirs = service_account(job)
    if theirs is None:
        return Access(own_account=True, subjects=(job_identity(job),), pod_names=names)
    return Access(own_account=False, subjects=(theirs,), pod_names=names)


async def grant(api: Api, job: Job, access: Access, written: Access | None) -> None:
    """Bring the objects up to date with ``access``; ``written`` is what this process last wrote."""
    if access == written:
        return
    writes = []
    base = f"/namespaces/{job.namespace}"
    name = job_identity(job)
    rbac = f"/apis/rbac.authorization.k8s.io/v1{base}"
    if access.own_account and (written is None or not written.own_account):
        writes.append((f"/api/v1{base}/serviceaccounts/{name}", _account(job)))
    if written is None or written.pod_names != access.pod_names:
        writes.append((f"{rbac}/roles/{name}", _role(job, access)))
    await asyncio.gather(*(_apply(api, path, body) for path, body in writes))
    if access.subjects and (written is None or written.subjects != access.subjects):
        # After the Role: who is no administrator may bind what he holds himself, and what a Role that is not
        # there yet holds nobody can tell. The API server's answer to that is 404.
        await _apply(api, f"{rbac}/rolebindings/{name}", _binding(job, access))


async def _apply(api: Api, path: str, body: dict[str, Any]) -> None:
    await api.patch(path, body, APPLY_PATCH, {"fieldManager": FIELD_MANAGER, "force": "true"})


def _meta(job: Job) -> dict[str, Any]:
    return {
        "name": job_identity(job),
        "namespace": job.namespace,
        "labels": {JOB_LABEL: job.name},
        "ownerReferences": [owner_reference(job)],
    }


def _account(job: Job) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(job)}


def _role(job: Job, access: Access) -> dict[str, Any]:
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    read = {**leases, "resourceNames": [round_lease(job.name)], "verbs": ["get", "list", "watch"]}
    write = {**leases, "resourceNames": list(access.pod_names), "verbs": ["get", "create", "patch"]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": _meta(job),
        # Without names a rule would be for every Lease of the namespace.
        "rules": [read, write] if access.pod_names else [read],
    }


def _binding(job: Job, access: Access) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _meta(job),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": job_identity(job),
        },
        "subjects": [
            {"kind": "ServiceAccount", "name": account, "namespace": job.namespace}
            for account in access.subjects
        ],
    }
