"""Runs passes: one worker for each job that needs one, fairly between namespaces, on the leading operator.

A change adds its job to the work queue, and a worker makes the pass. Changes that arrive during a pass cost
one more pass together. There is no other coalescing: nothing sleeps between an event and the plan, and
nothing but the end of a round that its members leave by themselves waits (``Reconciler``).

Of several operators, those that do not lead keep their view up to date and make no pass. The one that takes
over reads all jobs again, and no clock about silence is older than that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from elasticjob_operator.act.apply import Applier
from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.job_state import Stale, Vanished
from elasticjob_operator.controller.job_source import JobSource
from elasticjob_operator.controller.queue import WorkQueue
from elasticjob_operator.controller.reconciler import Planner, Reconciler
from elasticjob_operator.controller.registry import JobEntry, Registry, Request
from elasticjob_operator.controller.stray_quota import StrayQuota
from elasticjob_operator.controller.tasks import Tasks
from elasticjob_operator.logs import about, redacted
from elasticjob_operator.metrics.meter import Meter
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import ApiError, Forbidden, Invalid, Unavailable
from elasticjob_operator.observe.fair_limiter import FairLimiter
from elasticjob_operator.plan.planner import plan as real_plan
from elasticjob_operator.plan.state.model import Event
from elasticjob_operator.plan.urgency import Urgency, urgency
from elasticjob_operator.settings import Settings

_MAX_SLOW_PASSES = 10_000
"""Each job has one, and all that it does is wait for the API server."""

log = logging.getLogger("elasticjob.operator")


class Controller:
    """See the module. ``start`` runs it in the current event loop, ``aclose`` ends it.

    Passes are made between ``lead`` and ``follow``; without an election ``start`` leads.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        plan: Planner = real_plan,
        clock: Callable[[], float] = time.monotonic,
        meter: Meter | None = None,
    ) -> None:
        self.clock = clock
        self.meter = meter or Meter()
        self.settings = settings
        self.started_at = clock()
        self.ended: list[str] = []
        """Tasks that never end and have ended."""
        self._background, self._watches, self._workers = Tasks(), Tasks(), Tasks()
        """The last are all that write."""
        call_later = asyncio.get_running_loop().call_later
        self.queue: WorkQueue[Request] = WorkQueue(clock, call_later, self._start_worker)
        self.registry = Registry(
            changed=self.queue.add, forgotten=self._forget, defaults=settings.job_defaults
        )
        self.cache = ClusterCache(
            api,
            settings.namespaces,
            self.enqueue,
            clock,
            settings.notice_taints,
            settings.kueue,
            settings.topology,
        )
        handler = HandlerImage(settings.handler_image, settings.handler_pull_policy)
        applier = Applier(
            api, self.cache, clock, handler, self._workers.spawn, settings.kueue, settings.gang_scheduling
        )
        self.source = JobSource(api, settings, self.registry, self.queue, self.cache, applier, clock)
        self.reconciler = Reconciler(
            api,
            self.registry,
            self.cache,
            applier,
            self.meter.timed(plan),
            clock,
            self.source.changed,
            self.queue.has_news,
        )
        self.reconciler.decided = self.meter.decided
        self._strays = StrayQuota(api, self.cache, self.registry, applier.queues.writer)
        self._api = api
        self._applier = applier
        self._limiter = FairLimiter(settings.max_passes, _MAX_SLOW_PASSES, _MAX_SLOW_PASSES)

    @property
    def passes(self) -> int:
        """How many passes were planned."""
        return self.reconciler.passes

    def start(self, leading: bool = True) -> None:
        """Start the informers and, with ``leading``, the passes once everything has been listed."""
        if leading:
            self._background.spawn(self._take_over(), "first lists")
        else:
            self._watch()
        self.keep_running(self.cache.pulse(), "pulse")
        self.keep_running(self.cache.ask_how_late(), "lateness of watches")
        self.keep_running(self.source.run(), "relist")

    def keep_running(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Begin work that must never end: if it does, it is one of the ``ended``."""

        def note(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                self.ended.append(task.get_name())

        task = self._background.spawn(work, name)
        task.add_done_callback(note)
        return task

    async def lead(self) -> None:
        """Take over: read again what another operator may have written, then make passes.

        Returns when they have begun. May be cancelled; call ``follow`` then.
        """
        await self.cache.synced()
        await self._take_over()

    async def follow(self) -> None:
        """Make no further pass, and break off those under way, between two of their writes or during one."""
        self.queue.close()
        await self._workers.cancel()

    async def aclose(self) -> None:
        """End all tasks. What they have not written, the next operator writes."""
        self.queue.close()
        for tasks in (self._background, self._workers, self._watches):
            await tasks.cancel()

    def enqueue(self, namespace: str, name: str) -> None:
        """Something about this job is new."""
        entry = self.registry.get(namespace, name)
        if entry is not None:
            self.queue.add(entry.request)
        if entry is None or entry.view.deleting:
            self._strays.look()

    def _forget(self, request: Request) -> None:
        self.queue.discard(request)
        self._strays.look()

    def under_way(self) -> dict[str, float]:
        """The jobs with a pass under way, and for how many seconds. Time during an outage of the API server
        does not count."""
        now, health = self.clock(), self._api.write_outages
        return {
            str(request): now - max(since, health.good_since(request.namespace))
            for request, since in self.queue.working.items()
            if not health.is_outage(request.namespace, now)
        }

    async def _take_over(self) -> None:
        """List the jobs, and then all pods and Leases: these are at least as new as the statuses that mention
        them, by whichever operator. Nothing is read for one job alone."""
        await self.source.list_all()
        self.registry.start_afresh()
        # A watch that died while this operator stood by shows it only by its silence, and so late.
        try:
            await self._watches.cancel()
        finally:
            self.cache.reset()
            self._watch()
        await self.cache.synced()
        self.queue.open()
        self.meter.took_over()
        if self.settings.kueue:
            self._workers.spawn(self._strays.run(), "quota of jobs that are gone")
        for entry in self.registry:
            if self._urgency(entry) == Urgency.LOSS:
                self.queue.add(entry.request)
        # These are long lists, which no loss has to wait for.
        await self.source.compare_all_owned()
        for entry in sorted(self.registry, key=self._urgency):
            self.queue.add(entry.request)

    def _urgency(self, entry: JobEntry) -> Urgency:
        view = entry.view
        return urgency(view.status, self.cache.pods_by_name(view.job))

    def _watch(self) -> None:
        for informer in self.cache.informers():
            self._watches.spawn(informer.run(), f"informer {informer.path}")

    def _start_worker(self, request: Request) -> None:
        self._workers.spawn(self._work(request), f"worker {request}")

    async def _work(self, request: Request) -> None:
        """Wait for a turn, then make a pass over this job if it still needs one."""
        async with self._limiter.turn(request.namespace):
            entry, work = self.registry.find(request), self.queue.get(request)
            if entry is None or work is None:
                return
            try:
                await self._reconcile(entry, work.news)
            finally:
                self.queue.done(request, rest_until=entry.rest_until)

    async def _reconcile(self, entry: JobEntry, hurried: bool) -> None:
        """One pass, and when the next is due without news. Errors become a delay."""
        request, began = entry.request, self.clock()
        try:
            after = await self.reconciler.reconcile(entry, hurried)
        except Vanished:
            self.registry.forget(entry)
        except (ApiError, Stale) as error:
            # The first, then every tenth: an outage must not fill the log with every try of every job.
            level = logging.WARNING if self.queue.failures(request) % 10 == 0 else logging.DEBUG
            fields = about(str(request))
            log.log(level, "reconciliation failed and will be retried: %s", error, extra=fields)
            problem = str(error) if isinstance(error, (Forbidden, Invalid)) else ""
            self.meter.pass_failed(error)
            retry_after = error.retry_after if isinstance(error, Unavailable) else None
            self._retry(entry, problem, retry_after or 0.0)
        except Exception as error:
            # One job must not end the service for all the others.
            log.exception("reconciliation failed and will be retried", extra=about(str(request)))
            self.meter.pass_failed(error)
            self._retry(entry, redacted(f"{type(error).__name__}: {error}"))
        else:
            self.queue.forget(request)
            self.meter.passed(self.clock() - began)
            if after is not None and not entry.gone:
                self.queue.add_after(request, after)

    def _retry(self, entry: JobEntry, problem: str, at_least: float = 0.0) -> None:
        """Try again later. Every tenth time an Event says so, for users who do not see our log."""
        if problem and self.queue.failures(entry.request) % 10 == 0:
            text = f"reconciliation failed and will be retried with back-off: {problem}"
            event = Event("ReconcileFailed", text, warning=True)
            self._applier.recorder.send(entry.view.job, [event], entry.state.events)
        if not entry.gone:
            self.queue.add_rate_limited(entry.request, at_least)
