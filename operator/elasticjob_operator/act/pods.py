"""Writes what the planner wants of pods: creates, changes and deletes them, and deletes the Leases of pods
that are gone.

Every answer goes into the informer's store at once, so that the next pass does not repeat what this one
did.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from elasticjob.contract.names import ATTEMPT_LABEL, JOB_LABEL, SLOT_LABEL
from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.job_state import JobState
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.refusals import refused_containers
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.logs import about
from elasticjob_operator.observe.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from elasticjob_operator.observe.seen_pod import SeenPod, read_pod
from elasticjob_operator.plan.state.model import (
    VERBS,
    Action,
    CreatePod,
    DeleteJob,
    DeleteLease,
    DeletePod,
    Job,
    PatchPod,
    PodCondition,
    Target,
)
from elasticjob_operator.plan.template.containers import HANDLER_CONTAINER

log = logging.getLogger(__name__)


Write = tuple[Target, Callable[[], Awaitable[None]]]


class PodWriter:
    """Carries out the planner's actions."""

    def __init__(self, api: Api, cache: ClusterCache, handler_image: HandlerImage) -> None:
        self._api = api
        self._handler_image = handler_image
        self._cache = cache

    def writes(self, job: Job, actions: Sequence[Action], state: JobState) -> Iterator[Write]:
        """Each action as a write that raises ApiError; what failed and is no longer wanted is forgotten."""
        for verb in VERBS:
            state.writes.backoff.keep(verb, [action.target for action in actions])
        for action in actions:
            yield action.target, partial(self._do, job, action, state)

    async def _do(self, job: Job, action: Action, state: JobState) -> None:
        if isinstance(action, CreatePod):
            await self._create(job, action, state)
        elif isinstance(action, DeletePod):
            await self._delete(job, action)
        elif isinstance(action, PatchPod):
            await self._patch(job, action)
        elif isinstance(action, DeleteJob):
            await self._delete_job(job)
        else:
            await self._delete_lease(job, action)

    async def _create(self, job: Job, action: CreatePod, state: JobState) -> None:
        name = action.name
        state.pods.none_made = False
        image, known = self._handler_image, state.pods
        pod = pod_of(
            *(job, action.slot, action.attempt, image, action.avoid),
            claims=known.claims,
            is_small=not known.small_refused,
            group=known.group,
        )
        try:
            answer = await self._api.create(f"/api/v1/namespaces/{job.namespace}/pods", pod)
        except AlreadyExists:
            await self._look_at(job, name)
        except (Forbidden, Invalid, NotFound) as error:
            state.owned.doubt_rights()  # it may have been the service account that is missing
            refused = refused_containers(error.message, pod["spec"])
            error.message += refused
            state.pods.small_refused = state.pods.small_refused or HANDLER_CONTAINER in refused
            raise
        else:
            self._cache.saw_pod(answer)
            log.info("created pod %s", name, extra=about(job.key, pod=name))

    async def _look_at(self, job: Job, name: str) -> None:
        """The name is taken: let the planner see by which pod, even if it does not have our label."""
        try:
            raw = await self._api.get(f"/api/v1/namespaces/{job.namespace}/pods/{name}")
        except NotFound:
            self._cache.retry(job)
            return
        seen = read_pod(raw)
        if seen.owner == job.uid and seen.made and seen.job != job.name:
            await self._label_again(job, seen)
            return
        if seen.job == job.name:
            self._cache.pods.answered(seen)
        else:
            self._cache.pods.put(replace(seen, job=job.name))  # no list of ours has it
        self._cache.retry(job)

    async def _label_again(self, job: Job, seen: SeenPod) -> None:
        """A pod of this job that no watch shows, since it lacks the job's label: put it back."""
        labels = {JOB_LABEL: job.name, SLOT_LABEL: str(seen.pod.slot), ATTEMPT_LABEL: str(seen.pod.attempt)}
        if await self._patch(job, PatchPod(seen.name, seen.uid, tuple(labels.items()))):
            log.warning("restored the labels of pod %s", seen.name, extra=about(job.key, pod=seen.name))
        self._cache.retry(job)

    async def _delete(self, job: Job, action: DeletePod) -> None:
        path = f"/api/v1/namespaces/{job.namespace}/pods/{action.name}"
        fields = about(job.key, pod=action.name)
        log.info("deleting pod %s: %s", action.name, action.why, extra=fields)
        try:
            answer = await self._api.delete(path, action.uid, 0 if action.force else None)
        except (NotFound, Conflict):
            self._cache.pods.remove(job.namespace, action.name, uid=action.uid)
            return
        if answer.get("kind") == "Pod":
            self._cache.saw_pod(answer, deleting=True)
        else:
            self._cache.pods.remove(job.namespace, action.name, uid=action.uid)

    async def _patch(self, job: Job, action: PatchPod) -> bool:
        """Whether the pod is still there."""
        path = f"/api/v1/namespaces/{job.namespace}/pods/{action.name}"
        change: dict[str, Any] = {"metadata": {"uid": action.uid, "labels": dict(action.labels)}}
        content_type = MERGE_PATCH
        if action.condition is not None:
            path, content_type = f"{path}/status", STRATEGIC_MERGE_PATCH
            change = {"metadata": {"uid": action.uid}, "status": {"conditions": [_raw(action.condition)]}}
        try:
            self._cache.saw_pod(await self._api.patch(path, change, content_type))
        except (NotFound, Conflict):
            return False
        return True

    async def _delete_job(self, job: Job) -> None:
        with contextlib.suppress(NotFound, Conflict):
            await self._api.delete(job_path(job.namespace, job.name), uid=job.uid)
            log.info("deleted the job: its time to live expired", extra=about(job.key))

    async def _delete_lease(self, job: Job, action: DeleteLease) -> None:
        seen = self._cache.leases.get(job.namespace, action.name)
        if seen is None:
            return
        path = f"/apis/coordination.k8s.io/v1/namespaces/{job.namespace}/leases/{action.name}"
        with contextlib.suppress(NotFound, Conflict):
            await self._api.delete(path, seen.uid)
        self._cache.leases.remove(job.namespace, action.name, uid=seen.uid)


def _raw(condition: PodCondition) -> dict[str, str]:
    return {
        "type": condition.type,
        "status": str(condition.met),
        "reason": condition.reason,
        "lastTransitionTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
