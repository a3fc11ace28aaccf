"""One pass over one job: observe, plan, write, send Events.

A pass starts only from a status at least as new as our own last write: the registry has the newest of what
the watch brought and what our writes returned. If something turns out to be old, the job is read again and
planned again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

from elasticjob.contract.round_record import Phase
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.state import MemberState
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.act.apply import Applier, earliest
from elasticjob_operator.act.events import log_event
from elasticjob_operator.act.job_state import JobState, Leavers, Stale, Vanished
from elasticjob_operator.act.owned_kinds import TARGETS
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.write_backoff import READING
from elasticjob_operator.act.write_failures import record_write_failure
from elasticjob_operator.controller.registry import JobEntry, Registry, Request
from elasticjob_operator.logs import about
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import ApiError, NotFound, NotLeading
from elasticjob_operator.observe.spec import JobView, MalformedJob
from elasticjob_operator.plan.planner import plan_without_status_write
from elasticjob_operator.plan.state.model import (
    WAIT_RENEW_SECONDS,
    CreatePod,
    Event,
    Job,
    Now,
    Observed,
    Plan,
)
from elasticjob_operator.plan.state.status import JobStatus
from elasticjob_operator.plan.state.status_size import MAX_STATUS_BYTES, trim

Planner = Callable[[Job, JobStatus, Observed, Now, Mapping[WaitKey, float]], Plan]

_COSTLY_SECONDS, _REST = 0.02, 2.0
"""How long a plan may take, and for how many times that time the job rests after a longer one, as one of
1,000 pods does. While pods join by the thousand, news comes faster than plans can be made, and would keep a
CPU busy."""
_LEAVING_SECONDS, _LONGEST_LEAVING_SECONDS = 0.01, 0.1
"""How long a round goes on after a member has left it without giving a reason: until another has left, too,
and at most."""
_REREADS = 5

log = logging.getLogger("elasticjob.operator")


class Decision(NamedTuple):
    """A plan, and what it was made from. ``job``: what its queue lets it have."""

    job: Job
    observed: Observed
    now: Now
    plan: Plan


class Reconciler:
    """See the module. ``changed`` gets the job that was created under the same name, if a pass finds one.
    ``has_news`` says whether there is news of a job since the pass over it has begun."""

    def __init__(
        self,
        api: Api,
        registry: Registry,
        cache: ClusterCache,
        applier: Applier,
        plan: Planner,
        clock: Callable[[], float],
        changed: Callable[[Json], None],
        has_news: Callable[[Request], bool] = lambda _request: False,
    ) -> None:
        self._api = api
        self._registry = registry
        self._cache = cache
        self._applier = applier
        self._publisher, self._recorder = applier.publisher, applier.recorder
        self._plan = plan
        self._clock = clock
        self._changed = changed
        self._has_news = has_news
        self.decided: Callable[[JobStatus, JobStatus], None] = lambda _before, _after: None
        """Called with each status that was written, and the one before."""
        self.passes = 0
        """How many passes were planned."""

    async def reconcile(self, entry: JobEntry, hurried: bool) -> float | None:
        """One pass. Returns after how many seconds the next is due without any news. ``hurried``: there is
        news of the job. Raises ApiError, Stale, Vanished."""
        state = entry.state
        fresh = state.writes.stale
        if fresh:
            await self._read_again(entry)
            state.writes.stale = False
        for attempt in range(_REREADS):
            view = entry.view
            if entry.gone or _goes(view) or not view.managed_here:
                return None
            if view.status != entry.covered_status:
                # Another operator wrote it: a predecessor, or one that leads or believes so. It may mention
                # Leases and pods that our watches have not brought yet.
                await self._cache.read_again(view.job)
                entry.covered_status = view.status
            fresh = fresh or state.confirmed == self._publisher.published(view.job)
            try:
                decision = await self._decide(entry, view)
                return await self._act(entry, view, decision, fresh, hurried)
            except Stale as error:
                log.info("reading again: %s", error, extra=about(view.job.key))
                if attempt == _REREADS - 1:
                    raise
                await self._read_again(entry)
                state.confirmed = self._publisher.published(entry.view.job)
                fresh = True
        return None

    async def _decide(self, entry: JobEntry, view: JobView) -> Decision:
        """Observe and plan; once more if a member is judged by its silence."""
        self.passes += 1
        state, job = entry.state, view.job
        planner = state.planner
        decision = self._observe_and_plan(entry, view)
        silent = decision.plan.judged_silent
        if (
            decision.plan.judged_unheard
            or self._cache.versions(job, silent).items() - planner.checked_silence.items()
        ):
            # What they have not said may be what we have not heard: our watch may be late, or dead.
            await self._cache.confirm_silence(job, silent)
            if entry.gone or entry.view is not view:
                raise Stale("the job changed while its participants were read again")
            decision = self._observe_and_plan(entry, view)
            planner.checked_silence = self._cache.versions(job, decision.plan.judged_silent)
        plan = decision.plan
        planner.waits, planner.planned_at = plan.waits, decision.now.mono
        self._registry.set_waiting(entry, plan.waiting)
        if state.max_status_bytes < MAX_STATUS_BYTES:
            plan = replace(plan, status=trim(plan.status, state.max_status_bytes))
        return decision._replace(plan=plan)

    def _observe_and_plan(self, entry: JobEntry, view: JobView) -> Decision:
        state = entry.state
        job = self._applier.queues.limited(view.job, view.status, state)
        planner = state.planner
        continuity = self._cache.continuity(job.namespace)
        if planner.continuity != continuity or not self._cache.trusted(job.namespace):
            planner.timers = {}
        if planner.continuity != continuity:
            state.writes.backoff.again(passing=True)
        planner.continuity = continuity
        if view.status == JobStatus():
            state.owned.unmade.update(TARGETS)  # no operator has ever made anything for it
            state.pods.none_made = True
        now = Now(wall=datetime.now(timezone.utc), mono=self._clock(), nonce=secrets.token_hex(4))
        observed = replace(self._cache.observe(job), **self._publisher.published(job)._asdict())
        published = (
            observed.record.wait_renew_period_seconds if observed.record is not None else WAIT_RENEW_SECONDS
        )
        observed = replace(
            observed,
            failing_writes=state.writes.backoff.failing_writes(),
            uncounted=state.warnings.uncounted,
            fixed_gang=self._applier.owned.groups.fixed_minimum(job, state.owned),
            waiting=self._registry.waiting,
            renew_seconds=planner.renewals.update(published, now.mono),
        )
        began = time.thread_time()
        plan = self._plan(job, view.status, observed, now, planner.timers)
        cost = time.thread_time() - began
        if cost > _COSTLY_SECONDS:
            entry.rest_until = self._clock() + _REST * cost
        return Decision(job, observed, now, plan)

    async def _act(
        self, entry: JobEntry, view: JobView, decision: Decision, fresh: bool, hurried: bool
    ) -> float | None:
        """Write what was decided: the status first, pods last, then Events."""
        state = entry.state
        job, observed, now, decided = decision
        if self._others_leave(state, view, decided):
            state.planner.timers = {**decided.timers, **state.planner.timers}
            entry.rest_until = max(entry.rest_until, self._clock() + _LEAVING_SECONDS)
            return _LEAVING_SECONDS
        may_project = self._publisher.check(job, decided.record, fresh)
        written = await self._applier.status.write(view, decided.status, state, hurried)
        if written is None:
            # What was decided is not; what waits for its time goes on waiting.
            state.planner.timers = {**decided.timers, **state.planner.timers}
            decided = plan_without_status_write(job, view.status, observed, now, decided)
            may_project = self._publisher.check(job, decided.record, True) and view.status.seen
        else:
            state.planner.timers = decided.timers
            self._registry.wrote(entry, written)
            _log(view, decided)
            self.decided(view.status, decided.status)
        if entry.gone or (entry.view.deleting and not view.deleting):
            return None  # it was deleted while the status was written: no pod is made from now on
        if self._outdated(entry, view, written, decided):
            self._recorder.send(job, decided.events, state.events)
            return 0.0
        replaces = self._applier.creation.replaces_pods(job, decided, state)
        replaces = replaces or self._applier.owned.account_in_doubt(job, state.owned)
        if replaces and written in (None, view):
            decided = await self._check_job(entry, view, decided)
        else:
            state.writes.backoff.done(READING)
        events: tuple[Event, ...] = decided.events
        try:
            more, wake_after = await self._applier.write_rest(job, decided, state, may_project, hurried)
            events += more
        finally:
            self._recorder.send(job, events, state.events)
        queue_due = None if view.deleting else await self._applier.queues.write(view.job, decided, state)
        return earliest(decided.wake_after, wake_after, queue_due)

    def _others_leave(self, state: JobState, view: JobView, decided: Plan) -> bool:
        """Whether to wait for other members, where one has left the round without giving a reason.

        What has made it leave, such as the end of the leader, makes all of them leave, within milliseconds.
        Then the round's end is written once, with the next round or with the cause.
        """
        before, after = view.status.current_round, decided.status.current_round
        leavers, state.leavers = state.leavers, None
        ends = (before.phase, after.phase) == (Phase.ACTIVE, Phase.BROKEN)
        if not ends or after.next_cause.cause != Cause.MEMBER_LEFT:
            return False
        members, now = decided.status.members(), self._clock()
        left = sum(member.state == MemberState.LEFT for member in members)
        if left == len(members):
            return False
        if leavers is None:
            state.leavers = Leavers(now, left)
        elif left > leavers.left and now - leavers.since < _LONGEST_LEAVING_SECONDS:
            state.leavers = leavers._replace(left=left)
        return state.leavers is not None

    def _outdated(self, entry: JobEntry, view: JobView, written: JobView | None, decided: Plan) -> bool:
        """Whether the next pass, for which there is news, writes what follows from this status, too.

        Members that leave a round together announce themselves while the status says that it has ended. To
        publish that would hold up the next round by an answer of the API server, and wake each member once
        more. So it is left out once, no more: the others must learn that their round is over.
        """
        state = entry.state
        state.left_to_next_pass = (
            written not in (None, view)
            and decided.record.phase == Phase.BROKEN
            and not state.left_to_next_pass
            and self._has_news(entry.request)
        )
        return state.left_to_next_pass

    async def _check_job(self, entry: JobEntry, view: JobView, decided: Plan) -> Plan:
        """Read the job before anything is made again that may be missing because the job was deleted, where
        no write has tested that the job is as we know it. If the job can't be read, no pods are made."""
        others = tuple(action for action in decided.actions if not isinstance(action, CreatePod))
        writes = entry.state.writes
        if not writes.backoff.due(READING, self._clock()):
            return replace(decided, actions=others)
        try:
            await self._read_again(entry)
        except NotLeading:
            raise
        except ApiError as error:
            events = record_write_failure(view.job, writes, READING, error, self._clock())
            self._recorder.send(view.job, events, entry.state.events)
            return replace(decided, actions=others)
        writes.backoff.done(READING)
        if entry.view.version != view.version:
            raise Stale("the job changed before anything was made again")
        return decided

    async def _read_again(self, entry: JobEntry) -> None:
        job = entry.view.job
        try:
            raw = await self._api.get(job_path(job.namespace, job.name))
        except NotFound as error:
            raise Vanished(str(error)) from error
        if raw["metadata"]["uid"] != job.uid:
            self._changed(raw)
            raise Vanished("replaced by another job with the same name")
        try:
            self._registry.read_again(entry, raw)
        except MalformedJob as error:
            raise ApiError(f"GET {job.name}", 0, "Malformed", str(error)) from error
        await self._publisher.refresh(job)


def _goes(view: JobView) -> bool:
    """Whether the job is being deleted, and nothing is left to do for it: Kubernetes deletes its pods, or
    leaves them."""
    return view.deleting and not view.job.finalizers


def _log(before: JobView, decided: Plan) -> None:
    """One log line for each decision, in the words of its Event."""
    job, old, new = before.job, before.status.current_round, decided.status.current_round
    for event in decided.events:
        log_event(job, event, new.number)
    if (old.number, old.phase) != (new.number, new.phase) and not decided.events:
        log.info("round %d is %s", new.number, new.phase, extra=about(job.key, round=new.number))
