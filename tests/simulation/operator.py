"""The operator's shell in small: passes, and writes in the order of the protocol.

It keeps the rules of ``controller/`` and ``act/``: a pass starts from a status at least as new as the
operator's own last write; the status is written first, with its version; what is stale is read again from
the API server; timers die with every gap; a write that fails waits for itself and holds up nothing else;
no pod is given up for a silence before pods and Leases were listed. The planner is the real one.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from elasticjob.contract.round_record import INLINE_MEMBERS
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.act.batch import NO_PROGRESS_SECONDS
from elasticjob_operator.act.write_backoff import ROUND, STATUS, WriteBackoff
from elasticjob_operator.observe import errors
from elasticjob_operator.plan.planner import plan, plan_without_status_write
from elasticjob_operator.plan.rounds import rounds
from elasticjob_operator.plan.state.model import VERBS, Action, Job, Now, Observed, Plan, Target
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.api import (
    JOB_KEY,
    LIST_KEY,
    ROUND_KEY,
    Api,
    Conflict,
    Item,
    NotFound,
    Refused,
    Unavailable,
)
from tests.simulation.gang import GangShell
from tests.simulation.informers import NAMESPACE, Informers, JobValue, Stale, Vanished
from tests.simulation.kernel import Kernel, Script, Thread
from tests.simulation.owned import Owned
from tests.simulation.queue import QueueShell
from tests.simulation.writes import PodWriter, RoundPublisher

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
REREADS = 5


class Operator(Informers):
    """One operator process. ``wall`` and ``mono`` are what its clocks are off by, in seconds."""

    def __init__(
        self,
        kernel: Kernel,
        api: Api,
        name: str,
        wall: float,
        mono: float,
        told: Callable[[str], None],
        queued: bool = False,
        gang: bool | None = None,
    ) -> None:
        self._own = random.Random(kernel.rng.getrandbits(32))
        """For nonces: a pass more or less changes nothing else of the history."""
        super().__init__(kernel, api, name, queued)
        self.wall, self.mono = wall, mono
        self.timers: dict[WaitKey, float] = {}
        self.inline_members = INLINE_MEMBERS
        """Of the history: rounds of two are large in some."""
        self.owned: Owned | None = None
        """Set in histories in which writing these fails."""
        self.queue = QueueShell(self) if queued else None
        self.gang = GangShell(self, gang) if gang is not None else None
        self.passes = 0
        self._publisher = RoundPublisher(self)
        self._pods = PodWriter(
            self, lambda name, uid: self.delete_pod(name, uid), lambda uid: self.delete_job(uid), told
        )
        self.hanging: tuple[type, ...] = ()
        """Of the history: what the API server does not answer in time, so that no pass waits for it."""
        self.under_way: set[Target] = set()
        self._confirmed: tuple[Any, ...] | None = None
        """``JobState.confirmed``."""
        self._continuity = -1
        self._dirty = self._heard = True
        self.write_backoff = WriteBackoff(lambda: self.kernel.between(0.75, 1.25))
        self._known = JobStatus()
        """The status as this operator has written it, or has listed pods and Leases after."""
        self._loop: Thread = self.spawn(self._run())

    delete_pod: Callable[[str, str], Item | None]
    """The cluster's; set by the world."""

    delete_job: Callable[[str], None]
    """The world's."""

    def news(self) -> None:
        """See ``Informers``."""
        self._dirty = self._heard = True
        self._loop.wake()

    def again(self) -> None:
        """A write that no pass has waited for has ended."""
        self.news()

    def _run(self) -> Script:
        failures = 0
        while True:
            while not self.ready:
                yield 0.5
            if not self._dirty:
                yield 1e9
                self._dirty = True
            self._dirty = False
            wake: float | None = None
            try:
                wake = yield from self._pass()
                failures = 0
            except (Unavailable, Stale, Conflict, NotFound):
                failures += 1
                wake = min(30.0, 0.2 * 2.0 ** min(failures - 1, 16)) * self.kernel.between(0.5, 1.0)
                yield min(wake, 1.0)
                self._dirty = True
                continue
            except Vanished:
                wake = None
            if not self._dirty:
                yield 1e9 if wake is None else max(wake, 0.005)
                self._dirty = True

    def _pass(self) -> Script:
        fresh = False
        for attempt in range(REREADS):
            item = self.cache.items.get(JOB_KEY)
            if item is None:
                return None
            if item.value.status != self._known:
                yield from self.list_again()
                self._known = item.value.status
            fresh = fresh or self._confirmed == self._published()
            try:
                return (yield from self._plan_and_write(item, fresh))
            except Stale:
                if attempt == REREADS - 1:
                    raise
                yield from self.read_again(item)
                self._confirmed = self._published()
                fresh = True
        return None

    def _published(self) -> tuple[Any, ...]:
        items = self.cache.items
        return tuple(there.value for key in (ROUND_KEY, LIST_KEY) if (there := items.get(key)) is not None)

    def _plan_and_write(self, item: Item, fresh: bool) -> Script:
        value: JobValue = item.value
        self.check_standstill()
        continuity = self.continuity
        if (
            self._continuity != continuity
            or not self.good
            or self.write_outages.is_outage(NAMESPACE, self.kernel.now)
        ):
            self.timers = {}
        if self._continuity != continuity:
            self.write_backoff.again(passing=True)
        self._continuity = continuity
        now = Now(
            EPOCH + timedelta(seconds=self.kernel.now + self.wall),
            self.kernel.now + self.mono,
            f"{self._own.getrandbits(32):08x}",
        )
        self.passes += 1
        hurried, self._heard = self._heard, False
        observed = self._observe(value.job)
        job = value.job if self.queue is None else self.queue.limited(value.job, value.status)
        decided = self._small_records(plan, job, value.status, observed, now, self.timers)
        if decided.judged_unheard:
            yield from self._confirm_silence(decided.judged_silent)
            if self.cache.items.get(JOB_KEY) is not item:
                raise Stale
            observed = self._observe(value.job)
            decided = self._small_records(plan, job, value.status, observed, now, self.timers)
        may_project = self._publisher.check(value.job, decided.record, fresh)
        written = yield from self._try_status(item, decided, hurried)
        if written:
            self.timers = dict(decided.timers)
        else:
            self.timers = {**decided.timers, **self.timers}
            decided = self._small_records(
                plan_without_status_write, job, value.status, observed, now, decided
            )
            may_project = self._publisher.check(value.job, decided.record, True) and value.status.seen
        postponed = None
        if may_project and self.write_backoff.due(ROUND, self.kernel.now, hurried):
            try:
                postponed = yield from self._publisher.write(value.job, decided.record, decided.members)
                self.write_backoff.done(ROUND)
            except (Unavailable, Refused) as error:
                self.failed(ROUND, error)
        actions: Sequence[Action] = decided.actions
        if self.owned is not None:
            self.owned.keep(value.job, decided)
            self.owned.tell(decided.events)
            actions = self.owned.possible(value.job, actions)
        if self.gang is not None:
            self.gang.keep(value.job, decided)
            actions = self.gang.possible(value.job, decided.status, actions)
            self._pods.group = self.gang.group_of(value.job, decided.status) or ""
        for verb in VERBS:
            self.write_backoff.keep(verb, [action.target for action in actions])
        hanging = 0
        for action in actions:
            target = action.target
            if target in self.under_way or not self.write_backoff.due(target, self.kernel.now):
                continue
            if isinstance(action, self.hanging):
                hanging += 1
                self.under_way.add(target)
                self.spawn(self._write_in_background(value.job, action))
            else:
                yield from self._write_action(value.job, action)
        if hanging:
            yield NO_PROGRESS_SECONDS
        if self.queue is not None:
            yield from self.queue.write(value.job, decided)
        under_way = self.under_way | (frozenset() if self.owned is None else self.owned.under_way)
        delays = [decided.wake_after, postponed, self.write_backoff.wake_after(self.kernel.now, under_way)]
        return min((d for d in delays if d is not None), default=None)

    def _observe(self, job: Job) -> Observed:
        fixed = None if self.gang is None else self.gang.fixed_minimum()
        failing = self.write_backoff.failing_writes()
        return replace(self.observe(job), failing_writes=failing, fixed_gang=fixed)

    def _write_action(self, job: Job, action: Action) -> Script:
        try:
            yield from self._pods.write(job, action)
            self.write_backoff.done(action.target)
        except (Unavailable, Refused) as error:
            self.failed(action.target, error)

    def _write_in_background(self, job: Job, action: Action) -> Script:
        with contextlib.suppress(Stale):
            yield from self._write_action(job, action)
        self.under_way.discard(action.target)
        self.again()

    def _try_status(self, item: Item, decided: Plan, hurried: bool) -> Script:
        """Whether the status is as decided now."""
        if decided.status == item.value.status:
            self.write_backoff.done(STATUS)
            return True
        if not self.write_backoff.due(STATUS, self.kernel.now, hurried):
            return False
        try:
            written = yield from self.send(lambda: self._write_status(item, decided))
        except (Unavailable, Refused) as error:
            self.failed(STATUS, error)
            return False
        self.write_backoff.done(STATUS)
        self.cache.answered(JOB_KEY, written, self.kernel.now)
        self._known = decided.status
        return True

    def failed(self, target: Target, why: Exception) -> None:
        error: errors.ApiError = errors.Unavailable(target.name, 503, "", "unavailable")
        if isinstance(why, Refused):
            error = errors.Forbidden(target.name, 403, "Forbidden", str(why))
        self.write_backoff.failed(target, error, self.kernel.now)

    def _small_records(self, decide: Callable[..., Plan], *given: Any) -> Plan:
        rounds.INLINE_MEMBERS, usual = self.inline_members, rounds.INLINE_MEMBERS
        try:
            return decide(*given)
        finally:
            rounds.INLINE_MEMBERS = usual

    def _write_status(self, item: Item, decided: Plan) -> Item:
        """The JSON patch with its tests of UID and version."""
        there = self.api.get(JOB_KEY)
        if there.uid != item.uid or there.version != item.version:
            raise Conflict("the ElasticJob is not the one that was planned on")
        return self.api.put(JOB_KEY, JobValue(item.value.job, decided.status), version=item.version)

    def _confirm_silence(self, silent: Iterable[str]) -> Script:
        """``ClusterCache.confirm_silence``."""
        before = {
            key: self.cache.items[key].version
            for name in silent
            if (key := ("lease", name)) in self.cache.items
        }
        spoken = list(before)
        try:
            yield from self.list_again()
            spoken = [
                key
                for key in before
                if key not in self.cache.items or self.cache.items[key].version != before[key]
            ]
        finally:
            self.cache.touched.update(dict.fromkeys(spoken, self.kernel.now))
