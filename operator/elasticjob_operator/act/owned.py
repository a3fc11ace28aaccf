"""Writes an object that a job owns beside its pods, one of each kind (``owned_kinds``).

It is called ``<job>-elasticjob``. An object of this name that belongs to something else is neither
overwritten nor adopted. Otherwise a user who may create ElasticJobs could make the operator change or delete
other users' objects. Each write of an existing object is a JSON patch that tests the owner's UID, so no right
to read is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act.template import job_identity, owner_reference
from elasticjob_operator.observe.client import JSON_PATCH, Api
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, Invalid, NotFound
from elasticjob_operator.plan.state.model import Job, Target

_FIRST_OWNER = "/metadata/ownerReferences/0/uid"

Contents = Mapping[str, Any] | None
"""An object's top-level fields beside its metadata; None: there is no such object."""
Rule = dict[str, Any]
"""One rule of a Role."""


@dataclass(frozen=True)
class Needs:
    """What the contents depend on, beside the job: the pods that may write their Leases, the service accounts
    of the pods, and the rules by which pods read their round."""

    pod_names: frozenset[str]
    accounts: tuple[str, ...]
    reading: tuple[Rule, ...]


@dataclass(frozen=True)
class OwnedKind:
    """A kind of object of which a job has one. ``path`` is where it is listed, with {} for the namespace;
    ``fields`` are those that the operator writes. Kinds of one ``target`` are written together, those that
    are ``last`` after the others. Where one is not ``due``, the operator leaves it alone."""

    kind: str
    api_version: str
    path: str
    fields: tuple[str, ...]
    target: Target
    due: Callable[[Job, Needs], bool]
    contents: Callable[[Job, Needs], Contents]
    last: bool = False


class NotOurs(Invalid):
    """There is an object of that name, and it is not this job's."""

    def __init__(self, job: Job, kind: str, name: str) -> None:
        message = (
            f"{kind} {name} already exists in namespace {job.namespace} and is not owned by this job: its "
            "metadata.ownerReferences, if any, name its owner. What a deleted job has left goes by itself; "
            "otherwise delete it if nothing uses it, or delete this job and apply it again under another name"
        )
        super().__init__(f"the objects of {job.namespace}/{job.name}", 0, "NotOurs", message)


async def write_together(
    api: Api, job: Job, wanted: Mapping[OwnedKind, Contents], expect_missing: bool = False
) -> None:
    """Create, change or delete these objects. Raises NotOurs, ApiError."""

    async def write(kind: OwnedKind) -> None:
        contents = wanted[kind]
        if contents is None:
            await _remove(api, job, kind)
        else:
            await create_or_patch(api, job, kind, contents, expect_missing)

    first = [write(kind) for kind in wanted if not kind.last]
    for outcome in await asyncio.gather(*first, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome  # of several the first by kind: whichever was quicker, people read the same
    for kind in wanted:
        if kind.last:
            await write(kind)


async def create_or_patch(
    api: Api, job: Job, kind: OwnedKind, contents: Mapping[str, Any], expect_missing: bool = False
) -> None:
    """Create the object with these top-level fields, or set them. ``expect_missing``: it is not looked for
    first. Raises NotOurs, ApiError."""
    meta = {
        "name": job_identity(job),
        "namespace": job.namespace,
        "labels": {JOB_LABEL: job.name},
        "ownerReferences": [owner_reference(job)],
    }
    whole = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **contents}
    if expect_missing:
        with contextlib.suppress(AlreadyExists):
            await api.create(_collection(job, kind), whole)
            return
    changes = [{"op": "add", "path": f"/{field}", "value": value} for field, value in contents.items()]
    try:
        await _patch(api, job, kind, changes)
    except NotFound:
        await api.create(_collection(job, kind), whole)
    except Conflict as error:
        if error.status != 422:
            raise
        raise NotOurs(job, kind.kind, job_identity(job)) from error


async def _remove(api: Api, job: Job, kind: OwnedKind) -> None:
    """Delete the object if it is there and the job's. Raises ApiError."""
    try:
        found = await _patch(api, job, kind, [])
        await api.delete(f"{_collection(job, kind)}/{job_identity(job)}", uid=str(found["metadata"]["uid"]))
    except (NotFound, Conflict):
        pass  # gone, or not this job's


async def _patch(api: Api, job: Job, kind: OwnedKind, changes: list[dict[str, Any]]) -> dict[str, Any]:
    test = {"op": "test", "path": _FIRST_OWNER, "value": job.uid}
    return await api.patch(f"{_collection(job, kind)}/{job_identity(job)}", [test, *changes], JSON_PATCH)


def _collection(job: Job, kind: OwnedKind) -> str:
    return kind.path.format(f"/namespaces/{job.namespace}")
