"""Gives back the quota of jobs that are gone, or are being deleted.

A Workload outlives its job, by our finalizer, until the job's pods have ended: Kueue would else give their
nodes away while they save a checkpoint. No pass is made over a job that is gone, so the reconciler
does not do it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.workloads import WorkloadWriter
from elasticjob_operator.controller.registry import Registry
from elasticjob_operator.logs import about
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import ApiError, NotFound
from elasticjob_operator.observe.seen_workload import SeenWorkload

_LONGEST_SECONDS = 30.0
"""How long after the last look there is another one without any news."""
_AGAIN_SECONDS = 1.0

log = logging.getLogger("elasticjob.operator")


class StrayQuota:
    """See the module."""

    def __init__(self, api: Api, cache: ClusterCache, registry: Registry, writer: WorkloadWriter) -> None:
        self._api = api
        self._cache = cache
        self._registry = registry
        self._writer = writer
        self._news = asyncio.Event()

    def look(self) -> None:
        """There is news of a job that is gone or being deleted."""
        self._news.set()

    async def run(self) -> None:
        """Release what is stray, until cancelled; run it as a task of the operator that leads."""
        pause = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause)
            self._news.clear()
            pause = _LONGEST_SECONDS
            for seen in list(self._strays()):
                try:
                    await self._release(seen)
                except ApiError as error:
                    pause = _AGAIN_SECONDS
                    log.warning("the quota of a job that is gone: %s", error, extra=about(_key(seen)))
                except Exception:
                    # Any error: the quota of other jobs depends on this task.
                    log.exception("the quota of a job that is gone", extra=about(_key(seen)))

    def _strays(self) -> Iterator[SeenWorkload]:
        for seen in self._cache.workloads.all():
            entry = self._registry.get(seen.namespace, seen.job)
            known = entry is not None and entry.view.job.uid == seen.job_uid and not entry.view.deleting
            if seen.workload.kept and not known and not self._pods(seen):
                yield seen

    def _pods(self, seen: SeenWorkload) -> set[str]:
        return self._cache.unended_pods(seen.namespace, seen.job, seen.job_uid)

    async def _release(self, seen: SeenWorkload) -> None:
        """Release it if its job is gone indeed: one that can't be read, or was made a moment ago, is not."""
        try:
            job = await self._api.get(job_path(seen.namespace, seen.job))
        except NotFound:
            pass
        else:
            meta = job["metadata"]
            if meta["uid"] == seen.job_uid and not meta.get("deletionTimestamp"):
                return
        if not self._pods(seen):
            log.info("releasing the quota of Workload %s", seen.name, extra=about(_key(seen)))
            await self._writer.release(seen.namespace, seen.workload)


def _key(seen: SeenWorkload) -> str:
    return f"{seen.namespace}/{seen.job}"
