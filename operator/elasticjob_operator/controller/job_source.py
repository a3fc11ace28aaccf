"""What brings jobs to the registry: the watch, which is kopf's, and lists.

Jobs are listed when an operator begins to lead and about every five minutes: a list finds jobs that came or
went unseen. What jobs own is compared at the same time, because it may have been changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Callable

from elasticjob.contract.text import one_line
from elasticjob.core.pauses import exponential
from elasticjob_operator.act.apply import Applier
from elasticjob_operator.act.job_state import JobState
from elasticjob_operator.act.owned_snapshot import list_owned
from elasticjob_operator.act.paths import jobs_path
from elasticjob_operator.controller.queue import WorkQueue
from elasticjob_operator.controller.registry import JobEntry, Key, Registry, Request, key_of
from elasticjob_operator.logs import about
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import ApiError
from elasticjob_operator.observe.lists import read_list
from elasticjob_operator.observe.spec import MalformedJob
from elasticjob_operator.plan.state.model import Event, Job, JobSpec
from elasticjob_operator.settings import Settings

_FIRST_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 1.0
PAGE = 50
"""How many jobs a page of a list has: a job of thousands of members may have a megabyte of status."""

log = logging.getLogger("elasticjob.operator")


class JobSource:
    """See the module."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        registry: Registry,
        queue: WorkQueue[Request],
        cache: ClusterCache,
        applier: Applier,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._settings = settings
        self._registry = registry
        self._queue = queue
        self._cache = cache
        self._applier = applier
        self._clock = clock

    def watched(self, raw: Json) -> None:
        """The watch has brought an ElasticJob."""
        self.changed(raw)
        self._registry.watched(raw)

    def changed(self, raw: Json) -> None:
        """An ElasticJob was created or changed, or was found in a list."""
        namespace, name = key_of(raw)
        if not self._cache.covers(namespace):
            return
        try:
            self._registry.update(raw)
        except MalformedJob as error:
            self._unreadable(raw, str(error), error.event)
        except Exception as error:
            log.exception("the job cannot be read", extra=about(f"{namespace}/{name}"))
            self._unreadable(raw, f"{namespace}/{name} cannot be read ({type(error).__name__})")

    def deleted(self, raw: Json) -> None:
        """The watch has brought the end of an ElasticJob."""
        self._registry.deleted(raw)

    def last_event_at(self) -> dict[str, float]:
        """Until when the watch of jobs has brought everything that lists and the answers to our own writes
        have shown, by path. Ask regularly."""
        now = self._clock()
        paths = {namespace: jobs_path(namespace) for namespace in self._namespaces()}
        until = dict.fromkeys(paths.values(), now)
        for namespace, moment in self._registry.watch_behind_since(now).items():
            path = paths.get(namespace) or paths[""]
            until[path] = min(until[path], moment)
        return until

    async def run(self) -> None:
        """Relist now and then, for ever."""
        while True:
            await asyncio.sleep(self._settings.relist_seconds * random.uniform(0.8, 1.2))
            for namespace in self._namespaces():
                try:
                    await self.relist(namespace)
                except ApiError as error:
                    log.warning("cannot list jobs: %s", error)
            self._registry.age()

    async def list_all(self) -> None:
        """List the jobs of all namespaces, each until it works."""
        for namespace in self._namespaces():
            for failures in itertools.count(1):
                try:
                    await self.list_jobs(namespace)
                    break
                except ApiError as error:
                    if failures % 10 == 1:
                        log.warning("cannot list jobs: %s", error)
                    await asyncio.sleep(exponential(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS, failures))

    async def compare_all_owned(self) -> None:
        """Compare what the jobs of all namespaces own."""
        for namespace in self._namespaces():
            await self._compare_owned(namespace)

    async def relist(self, namespace: str) -> None:
        """Compare the jobs known with those that exist; then give each a pass. Raises ApiError."""
        there = await self.list_jobs(namespace)
        await self._compare_owned(namespace)
        for entry in self._registry.of(namespace):
            if not entry.gone:
                self._queue.add(entry.request)
                await asyncio.sleep(min(1.0, self._settings.relist_seconds / 2 / max(1, there)))

    async def list_jobs(self, namespace: str) -> int:
        """Bring the registry up to date with the jobs that exist; return their number. Raises ApiError."""
        uids: dict[Key, str] = {}

        def take(raw: Json) -> None:
            uids[key_of(raw)] = str(raw["metadata"]["uid"])
            self.changed(raw)

        there, version = await read_list(self._api, jobs_path(namespace), take, page=PAGE)
        present = {Request(*key, uids[key]) for key in there}
        for entry in self._registry.forget_others(namespace, present, version):
            log.info("deleted while it was not watched", extra=about(str(entry.request)))
        return len(there)

    async def _compare_owned(self, namespace: str) -> None:
        """What a pod's identity needs, or what protects it, may have been deleted or changed."""

        def unfinished() -> list[JobEntry]:
            return [entry for entry in self._registry.of(namespace) if not entry.view.status.finished]

        if not unfinished():
            return
        groups = self._applier.owned.groups
        with contextlib.suppress(ApiError):  # it is asked again when a job needs one
            await groups.look()
        try:
            found = await list_owned(self._api, namespace, self._clock, groups.kinds)
        except ApiError as error:
            log.warning("cannot list the objects that jobs own: %s", error)
            return
        for entry in unfinished():
            if entry.request not in self._queue.working:  # else it may be writing just now: next time
                job = entry.view.job
                found.compare(job, entry.state.owned, self._applier.publisher.reading(job))

    def _unreadable(self, raw: Json, problem: str, reason: str = MalformedJob.event) -> None:
        """No condition can be written into a status that can't be read: the log has it, and an Event."""
        namespace, name = key_of(raw)
        log.error("%s", one_line(problem, 1_000), extra=about(f"{namespace}/{name}", reason=reason))
        if self._queue.is_open:
            job = Job(namespace, name, str(raw["metadata"]["uid"]), 0, JobSpec())
            state = self._registry.unreadable.setdefault((namespace, name), JobState())
            self._applier.recorder.send(job, [Event(reason, problem, warning=True)], state.events)

    def _namespaces(self) -> tuple[str, ...]:
        return self._settings.namespaces or ("",)
