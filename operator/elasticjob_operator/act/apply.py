"""Carrying out a plan: status, then access and the round Lease, then pods and Leases, then Events.

The order is the protocol (design, section 3): the status is the write-ahead log, the round Lease its
projection, and a pod's name stands in both and in its Role before the pod is made. A process that dies
between any two of these writes leaves something from which the next pass resumes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from elasticjob_operator.act import network, template
from elasticjob_operator.act.access import Access, access_of, grant
from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.memory import Memory, Stale, Vanished
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.pods import PodWriter
from elasticjob_operator.act.projection import Projector
from elasticjob_operator.observe.client import JSON_PATCH, METADATA_ONLY, Api
from elasticjob_operator.observe.errors import Conflict, NotFound
from elasticjob_operator.observe.objects import version_of
from elasticjob_operator.observe.spec import JobView
from elasticjob_operator.observe.world import World
from elasticjob_operator.plan import rules
from elasticjob_operator.plan.model import Event, Job, Plan

UNNEEDED_SECONDS = 5.0
"""How long a name that nobody needs may stay in the Role before a write is made for its removal alone."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written:
    """``events``: what came up while writing, beyond the plan's own. ``wake_after``: seconds until
    something that was postponed is due."""

    events: tuple[Event, ...]
    wake_after: float | None


class Applier:
    """Carries out plans, of any job."""

    def __init__(self, api: Api, world: World, clock: Callable[[], float], handler_image: str) -> None:
        self._api = api
        self._world = world
        self._clock = clock
        self._projector = Projector(api, world, clock)
        self._pods = PodWriter(api, world, clock, handler_image)
        self.recorder = Recorder(api, clock)

    async def write_status(self, view: JobView, plan: Plan, fresh: bool) -> tuple[JobView, bool]:
        """The first half. Returns the job after the write, and whether the round may be projected.

        Raises Stale, Vanished, ApiError.
        """
        may_project = self._projector.check(view.job, plan.record, fresh)
        if plan.status == view.status:
            return view, may_project
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": view.job.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": str(view.version)},
            {"op": "add", "path": "/status", "value": plan.status.dump()},
        ]
        path = job_path(view.job.namespace, view.job.name) + "/status"
        try:
            # Nothing but the version can be new: the patch was for exactly the object that we know.
            answer = await self._api.patch(path, patch, JSON_PATCH, accept=METADATA_ONLY)
        except NotFound as error:
            raise Vanished(str(error)) from error
        except Conflict as error:
            raise Stale(str(error)) from error
        version = version_of(answer["metadata"])
        return replace(view, status=plan.status, version=version), may_project

    async def write_rest(self, job: Job, plan: Plan, memory: Memory, may_project: bool) -> Written:
        """The second half. Raises Stale, ApiError."""
        access = access_of(job, plan.pod_names, self._world.service_accounts(job))
        unneeded = self._unneeded(access, memory)
        # A job that had ended before this process looked needs nothing more: no writes, at any takeover.
        over = plan.status.finished and memory.access is None
        granted = access == memory.access or unneeded is not None or over
        due = [] if granted else [self._grant(job, access, memory)]
        if network.is_due(job, memory.network_policy) and not plan.status.finished:
            due.append(self._restrict(job, memory))
        # None needs another, and all come before the pods.
        writes = [self._project(job, plan, memory, may_project), *due]
        delays = [unneeded]
        for result in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            delays.append(result)
        refusals, pause = await self._pods.act(job, plan.actions, memory)
        warnings = () if plan.status.finished else self._warnings(job, memory)
        return Written((*warnings, *refusals), earliest(*delays, pause))

    async def refresh_round(self, job: Job) -> None:
        """Read the round Lease from the API server."""
        await self._projector.refresh(job)

    def _unneeded(self, access: Access, memory: Memory) -> float | None:
        """Seconds for which rights may stay that are no longer needed; None if access must be written now.

        A lost pod takes its name out of the Role. A write for that alone would hold up the next pass, the one
        that forms the round, by an answer of the API server; and the replacement's name comes soon.
        """
        if memory.access is None or access == memory.access or not memory.access.includes(access):
            memory.unneeded_since = None
            return None
        if memory.unneeded_since is None:
            memory.unneeded_since = self._clock()
        left = memory.unneeded_since + UNNEEDED_SECONDS - self._clock()
        return left if left > 0 else None

    async def _grant(self, job: Job, access: Access, memory: Memory) -> None:
        with memory.tells("rights of the pods"):
            await grant(self._api, job, access, memory.access)
        memory.access = access

    async def _restrict(self, job: Job, memory: Memory) -> None:
        with memory.tells("network policy"):
            await network.restrict(self._api, job)
        memory.network_policy = job.spec.network_policy

    async def _project(self, job: Job, plan: Plan, memory: Memory, may_project: bool) -> float | None:
        if not may_project:
            return None
        with memory.tells("round"):
            return await self._projector.write(job, plan.record, memory)

    def _warnings(self, job: Job, memory: Memory) -> tuple[Event, ...]:
        """What is wrong with the spec, said once for each generation."""
        if memory.warned_generation == job.generation:
            return ()
        memory.warned_generation = job.generation
        return (
            *(Event("FlagOverrides", text, warning=True) for text in template.warnings(job)),
            *(Event("PythonPathReplaced", text, warning=True) for text in template.path_warnings(job)),
            *(Event("NoSuchContainer", text, warning=True) for text in template.misnamed_container(job)),
            *(Event("InvalidRule", text, warning=True) for text in rules.problems(job.spec.rules)),
        )


def earliest(*delays: float | None) -> float | None:
    """The shortest of the delays that there are."""
    return min((d for d in delays if d is not None), default=None)
