"""Making and deleting pods, and the Leases of pods that are gone.

Every answer goes into the informer's store at once, so that the next pass does not repeat what this one
did. A pod that the API server refuses (quota, admission) is tried again with growing pauses of its own:
the job's other business goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from elasticjob.contract.names import STANDBY_LABEL, pod_name
from elasticjob_operator.act.memory import Memory, Refusal
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.observe import objects
from elasticjob_operator.observe.client import MERGE_PATCH, Api
from elasticjob_operator.observe.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from elasticjob_operator.observe.world import World
from elasticjob_operator.plan.model import (
    CreatePod,
    DeleteJob,
    DeleteLease,
    DeletePod,
    Do,
    Event,
    Job,
    LabelStandby,
)

_AT_ONCE = 16
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0

log = logging.getLogger(__name__)


class PodWriter:
    """Carries out the planner's actions."""

    def __init__(self, api: Api, world: World, clock: Callable[[], float], handler_image: str) -> None:
        self._api = api
        self._handler_image = handler_image
        self._world = world
        self._clock = clock

    async def act(self, job: Job, actions: Sequence[Do], memory: Memory) -> tuple[list[Event], float | None]:
        """Do everything, several at a time. Returns Events about refusals, and seconds until the next
        refused pod may be tried again. Raises the first other error once all have been tried."""
        gate = asyncio.Semaphore(_AT_ONCE)
        events: list[Event] = []
        wanted = {pod_name(job.name, a.slot, a.attempt) for a in actions if isinstance(a, CreatePod)}
        for name in [n for n in memory.refused_pods if n not in wanted]:
            del memory.refused_pods[name]

        async def one(action: Do) -> None:
            async with gate:
                if isinstance(action, CreatePod):
                    await self._create(job, action, memory, events)
                elif isinstance(action, DeletePod):
                    await self._delete(job, action)
                elif isinstance(action, LabelStandby):
                    await self._label(job, action)
                elif isinstance(action, DeleteJob):
                    await self._delete_job(job)
                else:
                    await self._delete_lease(job, action)

        results = await asyncio.gather(*(one(a) for a in actions), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        pauses = [r.not_before - self._clock() for r in memory.refused_pods.values()]
        return events, min(pauses, default=None)

    async def _create(self, job: Job, action: CreatePod, memory: Memory, events: list[Event]) -> None:
        name = pod_name(job.name, action.slot, action.attempt)
        refusal = memory.refused_pods.get(name)
        if refusal is not None and self._clock() < refusal.not_before:
            return
        try:
            made = await self._api.create(
                f"/api/v1/namespaces/{job.namespace}/pods",
                pod_of(job, action.slot, action.attempt, self._handler_image, action.avoid),
            )
        except AlreadyExists:
            await self._look_at(job, name)
        except (Forbidden, Invalid, NotFound) as error:
            memory.access = None  # it may have been the service account that is missing
            failures = 1 if refusal is None else refusal.failures + 1
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (failures - 1))
            memory.refused_pods[name] = Refusal(self._clock() + pause, failures, error.message)
            log.warning("%s/%s: pod %s was refused: %s", job.namespace, job.name, name, error.message)
            events.append(Event("PodRefused", f"pod {name} was refused: {error.message}", warning=True))
        else:
            memory.refused_pods.pop(name, None)
            self._world.saw_pod(made)
            log.info("%s/%s: made pod %s", job.namespace, job.name, name)

    async def _look_at(self, job: Job, name: str) -> None:
        """The name is taken: let the planner see by whom, also if that pod bears no label of ours."""
        try:
            raw = await self._api.get(f"/api/v1/namespaces/{job.namespace}/pods/{name}")
        except NotFound:
            self._world.retry(job)
            return
        self._world.pods.put(replace(objects.read_pod(raw), job=job.name))
        self._world.retry(job)

    async def _delete(self, job: Job, action: DeletePod) -> None:
        path = f"/api/v1/namespaces/{job.namespace}/pods/{action.name}"
        log.info("%s/%s: deleting pod %s: %s", job.namespace, job.name, action.name, action.why)
        try:
            answer = await self._api.delete(path, action.uid, 0 if action.force else None)
        except (NotFound, Conflict):
            self._world.pods.remove(job.namespace, action.name, uid=action.uid)
            return
        if answer.get("kind") == "Pod":
            self._world.saw_pod(answer, deleting=True)
        else:
            self._world.pods.remove(job.namespace, action.name, uid=action.uid)

    async def _label(self, job: Job, action: LabelStandby) -> None:
        path = f"/api/v1/namespaces/{job.namespace}/pods/{action.name}"
        labels = {STANDBY_LABEL: "true" if action.standby else None}
        with contextlib.suppress(NotFound, Conflict):
            self._world.saw_pod(
                await self._api.patch(path, {"metadata": {"uid": action.uid, "labels": labels}}, MERGE_PATCH)
            )

    async def _delete_job(self, job: Job) -> None:
        with contextlib.suppress(NotFound, Conflict):
            await self._api.delete(job_path(job.namespace, job.name), uid=job.uid)
            log.info("%s/%s: deleted, its time to live is over", job.namespace, job.name)

    async def _delete_lease(self, job: Job, action: DeleteLease) -> None:
        seen = self._world.leases.get(job.namespace, action.name)
        if seen is None:
            return
        path = f"/apis/coordination.k8s.io/v1/namespaces/{job.namespace}/leases/{action.name}"
        with contextlib.suppress(NotFound, Conflict):
            await self._api.delete(path, seen.uid)
        self._world.leases.remove(job.namespace, action.name, uid=seen.uid)
