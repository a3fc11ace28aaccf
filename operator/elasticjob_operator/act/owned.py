"""What a job owns beside its pods, one of each: ServiceAccount, Role, RoleBinding and NetworkPolicy.

They are called ``<job>-elasticjob``. An object of this name that belongs to something else is neither
overwritten nor adopted. Otherwise a user who may create ElasticJobs could make the operator change or delete
other users' objects. Each write of an existing object is a JSON patch that tests the owner's UID, so no right
to read is needed.
"""

from __future__ import annotations

import contextlib
from typing import Any

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act.template import job_identity, owner_reference
from elasticjob_operator.observe.client import JSON_PATCH, Api
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, Invalid, NotFound
from elasticjob_operator.plan.state.model import Job

_FIRST_OWNER = "/metadata/ownerReferences/0/uid"


class NotOurs(Invalid):
    """There is an object of that name, and it is not this job's."""

    def __init__(self, job: Job, kind: str, name: str) -> None:
        message = (
            f"{kind} {name} already exists in namespace {job.namespace} and is not owned by this job: its "
            "metadata.ownerReferences, if any, name its owner. What a deleted job has left goes by itself; "
            "otherwise delete it if nothing uses it, or delete this job and apply it again under another name"
        )
        super().__init__(f"the objects of {job.namespace}/{job.name}", 0, "NotOurs", message)


async def bring_about(
    api: Api, job: Job, api_version: str, kind: str, contents: dict[str, Any], new: bool = False
) -> None:
    """Make the object with these top-level fields, or set them. ``new``: it is hardly there already. Raises
    NotOurs, ApiError."""
    collection = _collection(job, api_version, kind)
    meta = {
        "name": job_identity(job),
        "namespace": job.namespace,
        "labels": {JOB_LABEL: job.name},
        "ownerReferences": [owner_reference(job)],
    }
    whole = {"apiVersion": api_version, "kind": kind, "metadata": meta, **contents}
    if new:
        with contextlib.suppress(AlreadyExists):
            await api.create(collection, whole)
            return
    changes = [{"op": "add", "path": f"/{field}", "value": value} for field, value in contents.items()]
    try:
        await _patch(api, job, collection, changes)
    except NotFound:
        await api.create(collection, whole)
    except Conflict as error:
        if error.status != 422:
            raise
        raise NotOurs(job, kind, job_identity(job)) from error


async def remove(api: Api, job: Job, api_version: str, kind: str) -> None:
    """Delete the object if it is there and the job's. Raises ApiError."""
    collection = _collection(job, api_version, kind)
    try:
        found = await _patch(api, job, collection, [])
        await api.delete(f"{collection}/{job_identity(job)}", uid=str(found["metadata"]["uid"]))
    except (NotFound, Conflict):
        pass  # gone, or not this job's


async def _patch(api: Api, job: Job, collection: str, changes: list[dict[str, Any]]) -> dict[str, Any]:
    test = {"op": "test", "path": _FIRST_OWNER, "value": job.uid}
    return await api.patch(f"{collection}/{job_identity(job)}", [test, *changes], JSON_PATCH)


def _collection(job: Job, api_version: str, kind: str) -> str:
    root = "/apis" if "/" in api_version else "/api"
    plural = "networkpolicies" if kind == "NetworkPolicy" else f"{kind.lower()}s"
    return f"{root}/{api_version}/namespaces/{job.namespace}/{plural}"
