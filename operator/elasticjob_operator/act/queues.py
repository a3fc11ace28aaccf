"""Jobs in queues of Kueue: what the planner gets to see of them, and the writes of their Workloads.

The Workloads of a job are no part of the table of what it owns (``owned_kinds``): there are several, others
decide on them all the time, and what is there must not be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial

from elasticjob_operator.act.batch import Batch
from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.job_state import JobState, QueueState, Spawn
from elasticjob_operator.act.workloads import FLAVORS, WORKLOADS, WorkloadWriter
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.packed_template import PackedTemplate, TemplateTooLarge
from elasticjob_operator.plan.queue import placement
from elasticjob_operator.plan.queue.changes import Create, Use, changes
from elasticjob_operator.plan.queue.grants import grant, granted, is_queued, unseen
from elasticjob_operator.plan.queue.workloads import Workload, base_of
from elasticjob_operator.plan.state.model import CreatePod, Event, Job, Plan
from elasticjob_operator.plan.state.status import JobStatus

_UNSEEN_SECONDS = 10.0
"""After how long a job whose Workloads cannot be seen is looked at again."""


class Queues:
    """See the module. ``on``: the operator watches Workloads; without it no job is queued."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        clock: Callable[[], float],
        spawn: Spawn,
        recorder: Recorder,
        on: bool = False,
    ) -> None:
        self.on = on
        self.writer = WorkloadWriter(api, cache)
        self._cache = cache
        self._clock = clock
        self._spawn = spawn
        self._recorder = recorder

    def limited(self, job: Job, status: JobStatus, state: JobState) -> Job:
        """The job as the planner is to see it: with what its queue lets it have."""
        if not self.on or status.finished:
            return job
        workloads = self._cache.workloads_of(job)
        if workloads is None:
            return granted(job, unseen(job, len(self._pods(job)))) if is_queued(job, ()) else job
        if not is_queued(job, workloads):
            return job
        base, given = base_of(workloads), grant(job, workloads, _refused(state))
        if base is None or not base.live:
            state.queue.flavors, state.queue.template = {}, (None, None)
            return granted(job, given)
        if any(name not in state.queue.flavors for name in base.flavors):
            return granted(job, replace(given, placed=False))
        try:
            return granted(job, given, _template(job, base, state.queue))
        except TemplateTooLarge as error:
            why = f"with what queue {base.queue} adds for its nodes, {error}"
            return granted(job, replace(given, placed=False, sentence=why))

    async def write(self, job: Job, plan: Plan, state: JobState) -> float | None:
        """Write the job's Workloads. ``job`` is as its user wants it. Returns after how many seconds one that
        failed is due. Raises Stale."""
        workloads = self._cache.workloads_of(job) if self.on else None
        if workloads is None:
            return _UNSEEN_SECONDS if self.on and is_queued(job, ()) else None
        if not is_queued(job, workloads):
            return None
        before = state.writes.backoff.failing_writes()
        batch = Batch(job, state.writes, self._clock, self._spawn, partial(self._late, job, state))
        self._add(batch, job, plan, state, workloads)
        await batch.wait()
        self._recorder.send(job, batch.events, state.events)
        if state.writes.backoff.failing_writes() != before:
            self._cache.retry(job)  # the condition is to say so
        return state.writes.backoff.wake_after(self._clock(), state.writes.under_way)

    def _add(
        self, batch: Batch, job: Job, plan: Plan, state: JobState, workloads: tuple[Workload, ...]
    ) -> None:
        backoff, base = state.writes.backoff, base_of(workloads)
        chosen = base.flavors if base is not None and base.live else ()
        wanted = changes(job, workloads, self._use(job, plan))
        if any(name not in state.queue.flavors for name in chosen):
            batch.add(FLAVORS, partial(self.writer.read_flavors, job, chosen, state.queue))
            wanted = tuple(one for one in wanted if not isinstance(one, Create))  # extras need them
        else:
            backoff.done(FLAVORS)
        if wanted:
            batch.add(WORKLOADS, partial(self.writer.write, job, wanted, state.queue))
        else:
            backoff.done(WORKLOADS)

    def _use(self, job: Job, plan: Plan) -> Use:
        status = plan.status
        made = {action.name for action in plan.actions if isinstance(action, CreatePod)}
        met = status.current_round.phase == "Active" and status.current_round.established_time is not None
        outcome = status.terminal_state
        over = status.condition(outcome) if outcome else None
        return Use(
            pods=len(self._pods(job) | made),
            joined=len(status.participants) if met else 0,
            running=self._running(job, {member.pod_name for member in status.members()}),
            outcome=outcome,
            message=over.message if over is not None else "",
        )

    def _running(self, job: Job, members: Set[str]) -> int:
        """How many pods run and are to stay; of the ``members`` also those that have ended well."""
        pods, unended = self._cache.pods_by_name(job), self._pods(job)
        stay = sum(pods[name].running and not pods[name].deleting for name in unended)
        return stay + sum(pods[name].exited_well for name in members & pods.keys() - unended)

    def _pods(self, job: Job) -> set[str]:
        """The job's pods that have not ended."""
        return self._cache.unended_pods(job.namespace, job.name, job.uid)

    def _late(self, job: Job, state: JobState, events: list[Event]) -> None:
        self._recorder.send(job, events, state.events)
        self._cache.retry(job)


def _refused(state: JobState) -> str:
    """Why its Workloads cannot be written; "" if they can."""
    failing = state.writes.backoff.failing_writes()
    return next((f"{w.name} cannot be {w.verb}: {w.why}" for w in failing if w.name == WORKLOADS.name), "")


def _template(job: Job, base: Workload, queue: QueueState) -> PackedTemplate:
    key = (job.generation, base.flavors, base.updates)
    made_for, template = queue.template
    if template is None or made_for != key:
        flavors = [queue.flavors[name] for name in base.flavors]
        template = PackedTemplate(placement.placed(job.spec.template or {}, base, flavors))
        queue.template = (key, template)
    return template
