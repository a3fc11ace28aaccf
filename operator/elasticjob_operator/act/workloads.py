"""Writes a job's Workloads, one change after the other: each may be refused, and those after it then wait.

Every write is guarded by a version or a UID, and its answer goes into the informer's store, so that the next
pass does not repeat it. What is made smaller or deleted must still be what was decided upon: Kueue may have
admitted it meanwhile, and another operator may have made a pod. All that is needed of Kueue is its API: what
it decides comes by the watch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act import workload_status
from elasticjob_operator.act.job_state import QueueState
from elasticjob_operator.act.template import owner_reference
from elasticjob_operator.act.workload_status import StatusChange
from elasticjob_operator.logs import about
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import JSON_PATCH, MERGE_PATCH, Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, Invalid, NotFound
from elasticjob_operator.observe.seen_workload import (
    API_VERSION,
    EXTRA_LABEL,
    GROUP,
    JOB_UID_LABEL,
    workloads_path,
)
from elasticjob_operator.plan.queue.changes import (
    Change,
    Clear,
    Create,
    Finish,
    Release,
    Reprioritize,
    Resize,
    SetReady,
    SetUnready,
)
from elasticjob_operator.plan.queue.placement import node_labels, pod_set
from elasticjob_operator.plan.queue.workloads import FINALIZER, Workload
from elasticjob_operator.plan.state.model import Job, Target

WORKLOADS = Target("its Workloads in the queue", "written")
FLAVORS = Target("the ResourceFlavors that the queue has chosen", "read")

_TRIES = 4
"""Kueue writes the same objects, mostly a moment before us."""

log = logging.getLogger("elasticjob.operator")


class WorkloadWriter:
    """See the module."""

    def __init__(self, api: Api, cache: ClusterCache) -> None:
        self._api = api
        self._cache = cache

    async def write(self, job: Job, changes: Iterable[Change], state: QueueState) -> None:
        """Carry these out, in this order; what is gone is forgotten. One that has changed meanwhile is read
        again, and what comes after it is left to the next pass. ``job`` is as its user wants it. Raises
        ApiError."""
        for change in changes:
            try:
                await self._write(job, change, state)
            except NotFound:
                if isinstance(change, Create):
                    raise
                self._forget(job.namespace, change.workload)
            except Conflict:
                if isinstance(change, Create):
                    raise
                await self._look_again(job, change.workload)
                return
            name = change.name if isinstance(change, Create) else change.workload.name
            log.info("%s: Workload %s", type(change).__name__, name, extra=about(job.key))

    async def read_flavors(self, job: Job, names: Iterable[str], state: QueueState) -> None:
        """Read those that are not known yet; then the job is looked at again. Raises ApiError."""
        for name in names:
            if name not in state.flavors:
                raw = await self._api.get(f"/apis/{API_VERSION}/resourceflavors/{name}")
                state.flavors = {**state.flavors, name: raw.get("spec") or {}}
        self._cache.retry(job)

    async def release(self, namespace: str, workload: Workload) -> None:
        """Delete it, and take our finalizer off. Raises ApiError: Conflict if it has changed meanwhile."""
        path = f"{workloads_path(namespace)}/{workload.name}"
        try:
            if not workload.deleting:
                await self._api.delete(path, workload.uid, version=workload.version)
            await self._let_go(path, workload)
        except NotFound:
            self._forget(namespace, workload)

    def _forget(self, namespace: str, workload: Workload) -> None:
        self._cache.workloads.remove(namespace, workload.name, uid=workload.uid)

    async def _look_again(self, job: Job, workload: Workload) -> None:
        try:
            raw = await self._read(f"{workloads_path(job.namespace)}/{workload.name}", workload)
        except NotFound:
            self._forget(job.namespace, workload)
        else:
            self._cache.saw_workload(raw)
        self._cache.retry(job)

    async def _write(self, job: Job, change: Change, state: QueueState) -> None:
        if isinstance(change, Create):
            await self._create(job, change, state)
        elif isinstance(change, Clear):
            await self._change_status(job, change.workload, workload_status.cleared)
        elif isinstance(change, Release):
            await self.release(job.namespace, change.workload)
        elif isinstance(change, Resize):
            count = {"op": "replace", "path": "/spec/podSets/0/count", "value": change.count}
            seen = {"op": "test", "path": "/metadata/resourceVersion", "value": str(change.workload.version)}
            await self._patch(job, change.workload, seen, count)
        elif isinstance(change, Reprioritize):
            priority = {"op": "replace", "path": "/spec/priority", "value": change.priority}
            await self._patch(job, change.workload, priority)
        elif isinstance(change, SetReady):
            await self._change_status(job, change.workload, workload_status.ready)
        elif isinstance(change, SetUnready):
            await self._change_status(job, change.workload, workload_status.unready)
        else:
            await self._finish(job, change)

    async def _create(self, job: Job, change: Create, state: QueueState) -> None:
        body = manifest(job, change, node_labels(state.flavors[name] for name in change.flavors))
        if change.priority is None and job.queue is not None and job.queue.priority_class:
            body["spec"].update(await self._priority(job.queue.priority_class))
        try:
            answer = await self._api.create(workloads_path(job.namespace), body)
        except AlreadyExists:
            answer = await self._api.get(f"{workloads_path(job.namespace)}/{change.name}")
            if (answer["metadata"].get("labels") or {}).get(JOB_UID_LABEL) != job.uid:
                raise _not_ours(job, change.name) from None
        self._cache.saw_workload(answer)

    async def _priority(self, name: str) -> dict[str, Any]:
        """A Workload with a class must have its value, too."""
        found = await self._api.get(f"/apis/{API_VERSION}/workloadpriorityclasses/{name}")
        reference = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": name}
        return {"priorityClassRef": reference, "priority": int(found["value"])}

    async def _change_status(self, job: Job, workload: Workload, change: StatusChange) -> None:
        """Change the status of exactly what is read now. Raises NotFound."""
        path = f"{workloads_path(job.namespace)}/{workload.name}"
        for left in reversed(range(_TRIES)):
            try:
                raw = await self._read(path, workload)
                new = change(raw, _now())
                if new is not None:
                    version = {"resourceVersion": raw["metadata"]["resourceVersion"]}
                    body = {"metadata": version, "status": new}
                    raw = await self._api.patch(f"{path}/status", body, MERGE_PATCH)
                self._cache.saw_workload(raw)
            except Conflict:
                if not left:
                    raise
                continue
            return

    async def _patch(self, job: Job, workload: Workload, *changes: Mapping[str, Any]) -> None:
        path = f"{workloads_path(job.namespace)}/{workload.name}"
        test = {"op": "test", "path": "/metadata/uid", "value": workload.uid}
        self._cache.saw_workload(await self._api.patch(path, [test, *changes], JSON_PATCH))

    async def _finish(self, job: Job, change: Finish) -> None:
        finished = workload_status.finished(change.outcome, change.message)
        await self._change_status(job, change.workload, finished)
        await self._let_go(f"{workloads_path(job.namespace)}/{change.workload.name}", change.workload)

    async def _let_go(self, path: str, workload: Workload) -> None:
        """Take our finalizer off, and no other. Raises NotFound, also where another has its name."""
        for left in reversed(range(_TRIES)):
            raw = await self._read(path, workload)
            meta = raw["metadata"]
            others = [one for one in meta.get("finalizers") or () if one != FINALIZER]
            patch = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
                {"op": "add", "path": "/metadata/finalizers", "value": others},
            ]
            try:
                if others != list(meta.get("finalizers") or ()):
                    raw = await self._api.patch(path, patch, JSON_PATCH)
            except Conflict:
                if not left:
                    raise
                continue
            if meta.get("deletionTimestamp") and not others:
                raise NotFound(f"GET {path}", 404, "NotFound", "deleted")
            self._cache.saw_workload(raw)
            return

    async def _read(self, path: str, workload: Workload) -> Json:
        raw = await self._api.get(path)
        if raw["metadata"]["uid"] != workload.uid:
            raise NotFound(f"GET {path}", 404, "NotFound", "another Workload has this name")
        return raw


def manifest(job: Job, change: Create, selector: Mapping[str, str]) -> dict[str, Any]:
    """A Workload of the job, without its class."""
    labels = {JOB_LABEL: job.name, JOB_UID_LABEL: job.uid}
    spec: dict[str, Any] = {
        "queueName": change.queue,
        "podSets": [pod_set(job.spec.template or {}, change.count, selector)],
    }
    if change.priority is not None:
        labels[EXTRA_LABEL] = "true"
        spec["priority"] = change.priority
    meta = {
        "name": change.name,
        "namespace": job.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(job)],
        "finalizers": [FINALIZER],
    }
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": meta, "spec": spec}


def _not_ours(job: Job, name: str) -> Invalid:
    text = (
        f"Workload {name} already exists in namespace {job.namespace} and is not this job's; delete it if "
        "nothing uses it"
    )
    return Invalid(f"the Workload {name}", 0, "NotOurs", text)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
