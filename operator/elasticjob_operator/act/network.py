"""Who may connect to a job's pods: its NetworkPolicy.

The TCPStores of a round have no authentication, and whoever connects to one can end the training or read
what its members exchange. With ``JobOnly`` the job's pods accept connections from each other alone, on all
ports: torch picks its ports itself. Policies add up: a user opens a port by one of his own.

Like the Role it is owned by the job, written by server-side apply, and remembered, so that a pass that
changes nothing asks nothing. What somebody changes in it stays until the operator writes it again: every five
minutes or so, as the Role. A job without template has none: its pods are somebody else's.
"""

from __future__ import annotations

import contextlib
from typing import Any

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act.access import FIELD_MANAGER
from elasticjob_operator.act.template import job_identity, owner_reference
from elasticjob_operator.observe.client import APPLY_PATCH, JSON_PATCH, Api
from elasticjob_operator.observe.errors import Conflict, NotFound
from elasticjob_operator.plan.model import Job, NetworkPolicy


def is_due(job: Job, written: str | None) -> bool:
    """Whether there is something to write; ``written`` is what ``restrict`` last brought about."""
    return job.spec.template is not None and job.spec.network_policy != written


async def restrict(api: Api, job: Job) -> None:
    """Bring the policy about that the spec names. Raises ApiError."""
    name = job_identity(job)
    path = f"/apis/networking.k8s.io/v1/namespaces/{job.namespace}/networkpolicies/{name}"
    if job.spec.network_policy == NetworkPolicy.JOB_ONLY:
        await api.patch(path, _policy(job), APPLY_PATCH, {"fieldManager": FIELD_MANAGER, "force": "true"})
        return
    ours = [{"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": job.uid}]
    # It is not there, or somebody else's of that name, or was changed in between by whoever shall have it.
    with contextlib.suppress(NotFound, Conflict):
        found = await api.patch(path, ours, JSON_PATCH)
        await api.delete(path, uid=str(found["metadata"]["uid"]))


def _policy(job: Job) -> dict[str, Any]:
    pods = {"matchLabels": {JOB_LABEL: job.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": job_identity(job),
            "namespace": job.namespace,
            "labels": {JOB_LABEL: job.name},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}]}],
        },
    }
