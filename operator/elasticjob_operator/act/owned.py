"""Writes an object that a job owns beside its pods, one of each kind (``owned_kinds``).

It is called ``<job>-elasticjob``. An object of this name that belongs to something else is neither
overwritten nor adopted. Otherwise a user who may create ElasticJobs could make the operator change or delete
other users' objects. Each write of an existing object is a JSON patch that tests the owner's UID, so no right
to read is needed. An object that cannot be changed is deleted and made again.
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
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, Invalid, NotFound, Unavailable
from elasticjob_operator.plan.state.model import Job, Target

_FIRST_OWNER = "/metadata/ownerReferences/0/uid"

Contents = Mapping[str, Any] | None
"""An object's top-level fields beside its metadata; None: there is no such object."""
Rule = dict[str, Any]
"""One rule of a Role."""


@dataclass(frozen=True)
class Needs:
    """What the contents depend on, beside the job: the pods that may write their Leases, the service accounts
    of the pods, and the rules by which pods read their round. ``grouped``: pods of the job are in its
    PodGroup. ``least``: how many pods the job needs to train."""

    pod_names: frozenset[str]
    accounts: tuple[str, ...]
    reading: tuple[Rule, ...]
    grouped: bool = False
    least: int = 1


@dataclass(frozen=True, eq=False)
class OwnedKind:
    """A kind of object of which a job has one. ``path`` is where it is listed, with {} for the namespace;
    ``fields`` are those that the operator writes. Kinds of one ``target`` are written together, those that
    are ``last`` after the others. Where one is not ``due``, the operator leaves it alone. With a ``leaf``, a
    path below the fields, that alone is compared and changed: the API server adds defaults beside it. What is
    ``fixed`` cannot be changed: it is made again when no pod needs it any more."""

    kind: str
    api_version: str
    path: str
    fields: tuple[str, ...]
    target: Target
    due: Callable[[Job, Needs], bool]
    contents: Callable[[Job, Needs], Contents]
    last: bool = False
    leaf: tuple[str, ...] = ()
    fixed: bool = False

    def leaf_of(self, known: Contents) -> Any:
        """The value at the leaf, of what ``known`` returned; None without."""
        return None if known is None else known.get("/".join(self.leaf))

    def known(self, contents: Mapping[str, Any]) -> dict[str, Any]:
        """What is compared, of an object or of what is written."""
        if not self.leaf:
            return {name: contents.get(name) for name in self.fields}
        return {"/".join(self.leaf): _at(contents, self.leaf)}


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


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
    api: Api,
    job: Job,
    wanted: Mapping[OwnedKind, Contents],
    expect_missing: bool = False,
    grouped: bool = False,
) -> dict[OwnedKind, Contents]:
    """Create, change or delete these objects; return what is there now, in the form in which it is compared.
    ``grouped``: see ``Needs``. Raises NotOurs, ApiError."""
    there: dict[OwnedKind, Contents] = {}

    async def write(kind: OwnedKind) -> None:
        contents = wanted[kind]
        if contents is None:
            await _remove(api, job, kind)
            there[kind] = None
        elif kind.fixed:
            there[kind] = await _create_or_replace(api, job, kind, contents, grouped)
        else:
            await create_or_patch(api, job, kind, contents, expect_missing)
            there[kind] = kind.known(contents)

    first = [write(kind) for kind in wanted if not kind.last]
    for outcome in await asyncio.gather(*first, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome  # of several the first by kind: whichever was quicker, people read the same
    for kind in wanted:
        if kind.last:
            await write(kind)
    return there


async def create_or_patch(
    api: Api, job: Job, kind: OwnedKind, contents: Mapping[str, Any], expect_missing: bool = False
) -> None:
    """Create the object with these top-level fields, or set them. ``expect_missing``: it is not looked for
    first. Raises NotOurs, ApiError."""
    whole = _whole(job, kind, contents)
    if expect_missing:
        with contextlib.suppress(AlreadyExists):
            await api.create(_collection(job, kind), whole)
            return
    paths = [kind.leaf] if kind.leaf else [(name,) for name in contents]
    changes = [{"op": "add", "path": f"/{'/'.join(path)}", "value": _at(contents, path)} for path in paths]
    try:
        await _patch(api, job, kind, changes)
    except NotFound:
        await api.create(_collection(job, kind), whole)
    except Conflict as error:
        if error.status != 422:
            raise
        raise NotOurs(job, kind.kind, job_identity(job)) from error


async def _create_or_replace(
    api: Api, job: Job, kind: OwnedKind, contents: Mapping[str, Any], grouped: bool
) -> Contents:
    """Create the object; one that is there with other contents is made again, unless pods need it. Return
    what is there. Raises NotOurs, ApiError."""
    path, whole = f"{_collection(job, kind)}/{job_identity(job)}", _whole(job, kind, contents)
    try:
        await api.create(_collection(job, kind), whole)
        return kind.known(contents)
    except AlreadyExists:
        pass
    try:
        found = await _patch(api, job, kind, [])
        leaves = bool(found["metadata"].get("deletionTimestamp"))
        if grouped or (kind.known(found) == kind.known(contents) and not leaves):
            return kind.known(found)
        if not leaves:
            await api.delete(path, uid=str(found["metadata"]["uid"]))
    except NotFound:
        pass
    except Conflict as error:
        if error.status != 422:
            raise
        raise NotOurs(job, kind.kind, job_identity(job)) from error
    try:
        await api.create(_collection(job, kind), whole)
    except AlreadyExists as error:
        text = f"the former {kind.kind} {job_identity(job)} is still being deleted"
        raise Unavailable(f"POST {path}", 409, "AlreadyExists", text) from error
    return kind.known(contents)


def _whole(job: Job, kind: OwnedKind, contents: Mapping[str, Any]) -> dict[str, Any]:
    meta = {
        "name": job_identity(job),
        "namespace": job.namespace,
        "labels": {JOB_LABEL: job.name},
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **contents}


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
