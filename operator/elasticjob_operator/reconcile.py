"""From "something about this job is new" to a pass over it: level-triggered, one at a time per job.

A change marks its job dirty. A dirty job has one worker, which runs passes until the job is clean: observe,
plan, write. Changes that arrive during a pass accumulate and cost one more pass, which is all the
coalescing there is: nothing sleeps between an event and the plan.

A pass starts only from a status at least as new as our own last write: the view of a job is the maximum,
by resource version, of what kopf's watch said and what our writes returned.

With several operators, those that do not lead keep their view up to date and make no pass. Who takes over
reads the jobs anew, and no clock about silence is older than that.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from elasticjob.contract.names import GROUP, PLURAL, VERSION
from elasticjob.contract.text import one_line
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.act.apply import Applier, earliest
from elasticjob_operator.act.attempts import POLICY, READING, RIGHTS, STATUS
from elasticjob_operator.act.memory import Memory, Stale, Vanished
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.survey import survey
from elasticjob_operator.observe.client import Api, Json
from elasticjob_operator.observe.errors import (
    ApiError,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
    TooLarge,
    Unavailable,
)
from elasticjob_operator.observe.lists import read_list
from elasticjob_operator.observe.objects import version_of
from elasticjob_operator.observe.spec import JobView, MalformedJob, read_job
from elasticjob_operator.observe.turns import Turns
from elasticjob_operator.observe.world import World
from elasticjob_operator.plan.budget import BUDGET_BYTES, trim
from elasticjob_operator.plan.model import (
    WAIT_RENEW_SECONDS,
    CreatePod,
    Event,
    Job,
    JobSpec,
    Now,
    Observed,
    Plan,
)
from elasticjob_operator.plan.planner import meanwhile
from elasticjob_operator.plan.planner import plan as real_plan
from elasticjob_operator.plan.status import JobStatus
from elasticjob_operator.settings import Settings

Planner = Callable[[Job, JobStatus, Observed, Now, Mapping[WaitKey, float]], Plan]
Key = tuple[str, str]

_FIRST_BACK_OFF = 0.2
_LONGEST_BACK_OFF = 30.0
_MAX_DELETED = 10_000
_EVENT_BACK_OFF = 1.0
"""An event shows that the API server is back: a job in back-off then waits no longer than this."""
_SHORTEST_WAKE = 0.005
_COSTLY_SECONDS, _REST = 0.02, 2.0
"""After a plan that took longer, as one of 1,000 pods does, there is none of this job for twice its time."""
_SMALLEST_STATUS = 16 * 1024
"""Bytes; with less of a status it is not tried."""
_REREADS = 5
_MAX_SLOW_PASSES = 10_000
"""Each job has one, and all that it does is wait for the API server."""
JOBS_PAGE = 50
"""A job of thousands of members may have a megabyte of status."""

log = logging.getLogger("elasticjob.operator")


@dataclass
class Entry:
    """One ElasticJob, by UID. ``gone`` is set when it was deleted: its worker then ends."""

    view: JobView
    memory: Memory = field(default_factory=Memory)
    dirty: bool = False
    heard: bool = False
    """Whether there was news since the last pass began."""
    wish: int = 0
    """What people have written of it, to tell their changes from ours."""
    worker: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    wake_at: float = float("inf")
    failures: int = 0
    not_before: float = float("-inf")
    """While in back-off: no pass before this time, not even after an event."""
    gone: bool = False
    rest_until: float = float("-inf")
    """No pass before this time (of the event loop): the last was costly, and news comes faster than it is
    planned with. A job of thousands that join would keep a CPU busy with plans that wait for the rest."""
    pass_since: float | None = None
    """Since when a pass has been under way."""
    watched: int = 0
    """The newest version that the watch of jobs has brought."""
    owed: tuple[int, float] | None = None
    """A newer version that came otherwise, and since when the watch has not brought it."""
    waiting: int = 0
    """How many of its participants wait for a round."""
    known: JobStatus | None = field(default_factory=JobStatus)
    """The status that we wrote last, or after which we have listed the job's pods and Leases."""


class Reconciler:
    """See the module. ``start`` runs it in the current event loop, ``aclose`` ends it.

    Passes are made between ``lead`` and ``follow``; without an election ``start`` leads.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        plan: Planner = real_plan,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.clock = clock or time.monotonic
        self.settings = settings
        self.world = World(api, settings.namespaces, self.mark, self.clock)
        self.passes = 0
        """How many passes were planned."""
        self.started_at = self.clock()
        self.ended: list[str] = []
        """Tasks that never end and have ended."""
        self._api = api
        self._plan = plan
        self._applier = Applier(api, self.world, self.clock, settings.handler_image, self._act)
        self._entries: dict[Key, Entry] = {}
        self._gate = Turns(settings.max_passes, _MAX_SLOW_PASSES, _MAX_SLOW_PASSES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._acting: set[asyncio.Task[None]] = set()
        """Those of the tasks that write."""
        self._ready = False
        self._waiting = 0
        """How many participants of all jobs wait for a round."""
        self._deleted: dict[str, None] = {}
        """UIDs, the latest last: a list that was under way still has these jobs."""
        self._malformed: dict[Key, Memory] = {}
        """What was said of jobs that can't be read."""

    def start(self, leading: bool = True) -> None:
        """Start the informers and, with ``leading``, the passes once everything has been listed."""
        if leading:
            self._spawn(self._take_over(), "first lists")
        else:
            self._watch()
        for work, name in ((self.world.pulse(), "pulse"), (self._relist(), "relist")):
            self._spawn(work, name).add_done_callback(self._ended)

    async def lead(self) -> None:
        """Take over: read anew what somebody else may have written, then make passes.

        Returns when they have begun. May be cancelled; call ``follow`` then.
        """
        await self.world.synced()
        await self._take_over()

    async def _take_over(self) -> None:
        """List the jobs, and then all pods and Leases: these are at least as new as what any of the statuses
        tells of them, whoever has written it. Nothing is read for one job alone."""
        for namespace in self.settings.namespaces or ("",):
            await self._read_jobs(namespace)
        for entry in self._entries.values():
            entry.memory, entry.known = Memory(), entry.view.status
            entry.failures = 0
        # A watch that died while nobody waited for an answer shows it only by its silence, and so late.
        watches = list(self._watches)
        for task in watches:
            task.cancel()
        try:
            await asyncio.gather(*watches, return_exceptions=True)
        finally:
            self.world.anew()
            self._watch()
        await self.world.synced()
        for namespace in self.settings.namespaces or ("",):
            await self._compare_owned(namespace)
        await self._open()

    async def follow(self) -> None:
        """Make no further pass and break off those that run, between two of their writes or during one."""
        self._ready = False
        for entry in self._entries.values():
            self._cancel_timer(entry)
        tasks = list(self._acting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self._entries.values():
            entry.worker = None  # one that was cancelled before its first step has not done so itself

    def _watch(self) -> None:
        for informer in self.world.informers():
            task = self._spawn(informer.run(), f"informer {informer.path}")
            self._watches.add(task)
            task.add_done_callback(self._watches.discard)

    async def aclose(self) -> None:
        """End all tasks. What they have not written, the next operator writes."""
        self._ready = False
        for entry in self._entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def job_watched(self, raw: Json) -> None:
        """The watch has brought an ElasticJob."""
        self.job_changed(raw)
        meta = raw["metadata"]
        entry = self._entries.get((str(meta["namespace"]), str(meta["name"])))
        if entry is not None:
            entry.watched = max(entry.watched, version_of(meta))

    def job_changed(self, raw: Json) -> None:
        """An ElasticJob was made or changed, or was found in a list."""
        meta = raw["metadata"]
        key = (str(meta["namespace"]), str(meta["name"]))
        if not self.world.covers(key[0]):
            return
        entry = self._entries.get(key)
        if str(meta["uid"]) in self._deleted or (
            entry is not None and version_of(meta) <= entry.view.version
        ):
            return
        try:
            view = read_job(raw, entry.view if entry is not None else None)
        except MalformedJob as error:
            self._malformed_job(raw, str(error))
            return
        except Exception as error:
            log.exception("%s/%s can't be read", *key)
            self._malformed_job(raw, f"{key[0]}/{key[1]} can't be read ({type(error).__name__})")
            return
        self._malformed.pop(key, None)
        wish = hash((view.job.generation, repr(meta.get("annotations")), repr(meta.get("labels"))))
        if entry is not None and entry.view.job.uid == view.job.uid:
            entry.view = view
            if wish != entry.wish:
                entry.wish = wish
                entry.memory.attempts.again()
        else:
            if entry is not None:
                self._forget(key, entry)
            self._entries[key] = Entry(view, wish=wish)
        self.mark(*key)

    def job_deleted(self, raw: Json) -> None:
        """An ElasticJob was deleted. What it owns is collected by the cluster."""
        meta = raw["metadata"]
        key = (str(meta["namespace"]), str(meta["name"]))
        self._malformed.pop(key, None)
        self._deleted[str(meta["uid"])] = None
        if len(self._deleted) > _MAX_DELETED:
            del self._deleted[next(iter(self._deleted))]
        entry = self._entries.get(key)
        if entry is not None and entry.view.job.uid == meta["uid"]:
            self._forget(key, entry)

    def _malformed_job(self, raw: Json, trouble: str) -> None:
        """No condition can be written into a status that can't be read: the log has it, and an Event."""
        meta = raw["metadata"]
        job = Job(str(meta["namespace"]), str(meta["name"]), str(meta["uid"]), 0, JobSpec())
        log.error("%s", one_line(trouble, 1_000))
        if self._ready:
            memory = self._malformed.setdefault((job.namespace, job.name), Memory())
            self._send(job, Event("StatusUnreadable", trouble, warning=True), memory)

    def mark(self, namespace: str, name: str) -> None:
        """Something about this job is new."""
        entry = self._entries.get((namespace, name))
        if entry is None:
            return
        entry.dirty = entry.heard = True
        if self._ready and entry.worker is None:
            left = entry.not_before - self.clock() if entry.failures else 0.0
            if left > 0:
                self._wake(entry, left)
            else:
                self._work(entry)

    def jobs(self) -> list[JobView]:
        """All jobs known."""
        return [entry.view for entry in self._entries.values()]

    def under_way(self) -> dict[str, float]:
        """The jobs that a pass is being made over, and for how long, in seconds. What an outage of the API
        server has held up does not count."""
        now, answers = self.clock(), self._api.answers
        return {
            f"{namespace}/{name}": now - max(entry.pass_since, answers.good_since(namespace))
            for (namespace, name), entry in self._entries.items()
            if entry.pass_since is not None and not answers.is_outage(namespace, now)
        }

    def jobs_heard_at(self) -> dict[str, float]:
        """By path: until when the watch of jobs has brought all that lists and the answers to our own writes
        have shown. To be asked regularly: what it owes counts from the question that found it out."""
        now = self.clock()
        paths = {ns: _jobs_path(ns) for ns in self.settings.namespaces or ("",)}
        heard = dict.fromkeys(paths.values(), now)
        for (namespace, _), entry in self._entries.items():
            if entry.owed is None or entry.watched >= entry.owed[0]:
                version = entry.view.version
                entry.owed = (version, now) if version > entry.watched else None
            if entry.owed is not None:
                path = paths.get(namespace) or paths[""]
                heard[path] = min(heard[path], entry.owed[1])
        return heard

    def _work(self, entry: Entry) -> None:
        if self._ready and entry.worker is None and not entry.gone:
            job = entry.view.job
            entry.worker = self._act(self._run(entry), f"worker {job.namespace}/{job.name}")

    def _act(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._spawn(work, name)
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)
        return task

    async def _run(self, entry: Entry) -> None:
        """Pass after pass until the job is clean, or has to wait."""
        try:
            while entry.dirty and not entry.gone and self._ready:
                hurried = entry.heard
                left = entry.rest_until - self._loop.time()
                if left > 0:
                    await asyncio.sleep(left)
                    hurried = entry.heard
                entry.dirty = entry.heard = False
                self._cancel_timer(entry)
                async with self._gate.of(entry.view.job.namespace):
                    delay = await self._guarded_pass(entry, hurried)
                if delay is not None:
                    self._wake(entry, delay)
                if entry.failures:
                    return
        finally:
            entry.worker = None

    async def _guarded_pass(self, entry: Entry, hurried: bool) -> float | None:
        """One pass. Returns seconds until the next one is due without an event; errors become a delay."""
        job = entry.view.job
        who = f"{job.namespace}/{job.name}"
        entry.pass_since = self.clock()
        try:
            delay = await self._pass(entry, hurried)
        except Vanished:
            self._forget((job.namespace, job.name), entry)
            return None
        except (ApiError, Stale) as error:
            # Said once, then now and then: an outage must not fill the log with every job's every try.
            level = logging.WARNING if entry.failures % 10 == 0 else logging.DEBUG
            log.log(level, "%s: the pass ended early: %s", who, error)
            if isinstance(error, (Forbidden, Invalid)):
                self._tell_trouble(entry, str(error))
            retry_after = error.retry_after if isinstance(error, Unavailable) else None
        except Exception as error:
            # One job must not end the service for all the others.
            log.exception("%s: the pass failed", who)
            self._tell_trouble(entry, f"{type(error).__name__}: {error}")
            retry_after = None
        else:
            entry.failures = 0
            return delay
        finally:
            entry.pass_since = None
        entry.failures += 1
        back_off = min(_LONGEST_BACK_OFF, _FIRST_BACK_OFF * 2.0 ** min(entry.failures - 1, 16))
        entry.not_before = self.clock() + max(min(back_off, _EVENT_BACK_OFF), retry_after or 0.0)
        entry.dirty = True
        return max(back_off * random.uniform(0.5, 1.0), retry_after or 0.0)

    def _tell_trouble(self, entry: Entry, trouble: str) -> None:
        """An Event for people who look at this job and not at our log; once in so many tries."""
        if entry.failures % 10 == 0:
            text = f"the operator can't go on with this job and tries again, later and later: {trouble}"
            self._send(entry.view.job, Event("PassFailed", text, warning=True), entry.memory)

    def _send(self, job: Job, event: Event, memory: Memory) -> None:
        self._act(self._applier.recorder.send(job, (event,), memory), "events")

    async def _pass(self, entry: Entry, hurried: bool) -> float | None:
        """Observe, plan and write, reading anew as often as something turns out to be old."""
        fresh = entry.memory.stale
        if fresh:
            await self._read_again(entry)
            entry.memory.stale = False
        for attempt in range(_REREADS):
            view = entry.view
            if entry.gone or view.deleting or not view.ours:
                return None
            if view.status != entry.known:
                # Somebody else wrote it: a predecessor, or another operator that leads or believes so. It may
                # tell of Leases and pods that our watches have not brought yet.
                await self.world.read_again(view.job)
                entry.known = view.status
            try:
                return await self._plan_and_write(entry, view, fresh, hurried)
            except Stale as error:
                log.info("%s/%s: reading again: %s", view.job.namespace, view.job.name, error)
                if attempt == _REREADS - 1:
                    raise
                await self._read_again(entry)
                fresh = True
        return None

    def _observe_and_plan(self, entry: Entry, view: JobView) -> tuple[Observed, Now, Plan]:
        memory, job = entry.memory, view.job
        continuity = self.world.continuity(job.namespace)
        if memory.continuity != continuity or not self.world.trusted(job.namespace):
            memory.timers = {}
        if memory.continuity != continuity:
            memory.attempts.again(passing=True)
        memory.continuity = continuity
        if view.status == JobStatus():
            memory.unmade.update((RIGHTS, POLICY))  # no operator has ever made anything for it
        now = Now(wall=datetime.now(timezone.utc), mono=self.clock(), nonce=secrets.token_hex(4))
        observed = self.world.observe(job)
        told = observed.record.wait_renew_seconds if observed.record is not None else WAIT_RENEW_SECONDS
        observed = replace(
            observed,
            troubles=memory.attempts.troubles(),
            waiting=self._waiting,
            renew_seconds=memory.renewals.told(told, now.mono),
        )
        began = time.thread_time()
        decided = self._plan(job, view.status, observed, now, memory.timers)
        cost = time.thread_time() - began
        if cost > _COSTLY_SECONDS:
            entry.rest_until = self._loop.time() + _REST * cost
        return observed, now, decided

    async def _plan_and_write(self, entry: Entry, view: JobView, fresh: bool, hurried: bool) -> float | None:
        memory = entry.memory
        job = view.job
        self.passes += 1
        observed, now, decided = self._observe_and_plan(entry, view)
        if decided.given_up or self.world.versions(job, decided.silent).items() - memory.silent.items():
            # What they have not said may be what we have not heard: our watch may be late, or dead.
            await self.world.look(job, decided.silent)
            if entry.gone or entry.view is not view:
                raise Stale("the job has changed while its participants were looked at")
            observed, now, decided = self._observe_and_plan(entry, view)
            memory.silent = self.world.versions(job, decided.silent)
        self._count_waiting(entry, decided.waiting)
        if memory.status_budget < BUDGET_BYTES:
            decided = replace(decided, status=trim(decided.status, memory.status_budget))
        may_project = self._applier.may_project(job, decided.record, fresh)
        written = await self._write_status(entry, view, decided, hurried)
        if written is None:
            # What was decided is not; what waits for its time goes on waiting.
            memory.timers = {**decided.timers, **memory.timers}
            decided = meanwhile(job, view.status, observed, now, decided)
            may_project = (
                self._applier.may_project(job, decided.record, True) and view.status.start is not None
            )
        else:
            memory.timers = decided.timers
            _tell(view, decided)
        if entry.view.deleting or entry.gone:
            return None  # it was deleted while the status was written: no pod is made from now on
        if written in (None, view) and self._makes_pods(job, decided, memory):
            decided = await self._check_job(entry, view, decided)
        else:
            memory.attempts.done(READING)
        events: tuple[Event, ...] = decided.events
        try:
            rest = await self._applier.write_rest(job, decided, memory, may_project, hurried)
            events += rest.events
        finally:
            if events:
                self._act(self._applier.recorder.send(job, events, memory), "events")
        return earliest(decided.wake_after, rest.wake_after)

    async def _write_status(
        self, entry: Entry, view: JobView, decided: Plan, hurried: bool
    ) -> JobView | None:
        """The job after the write, None if the status could not be written, or has to wait."""
        attempts = entry.memory.attempts
        if decided.status != view.status and not attempts.due(STATUS, self.clock(), hurried):
            return None
        try:
            written = await self._applier.write_status(view, decided)
        except NotLeading:
            raise
        except ApiError as error:
            if isinstance(error, TooLarge) and entry.memory.status_budget > _SMALLEST_STATUS:
                # The spec, or what else stands in the object, has taken the room.
                entry.memory.status_budget //= 2
            self._applier.note(view.job, entry.memory, STATUS, error)
            return None
        attempts.done(STATUS)
        if written.version > entry.view.version:
            # A change of the spec that arrived while we wrote is older than this write: the test of the
            # resource version has seen to that. One that is newer stays.
            entry.view = written
        entry.known = written.status
        return written

    async def _check_job(self, entry: Entry, view: JobView, decided: Plan) -> Plan:
        """Pods are about to be made, and no write has tested that the job is as we know it: pods that vanish
        may be the first that our watches tell of its deletion. Where it can't be read, none are made."""
        others = tuple(action for action in decided.actions if not isinstance(action, CreatePod))
        if not entry.memory.attempts.due(READING, self.clock()):
            return replace(decided, actions=others)
        try:
            await self._read_again(entry)
        except NotLeading:
            raise
        except ApiError as error:
            self._applier.note(view.job, entry.memory, READING, error)
            return replace(decided, actions=others)
        entry.memory.attempts.done(READING)
        if entry.view.version != view.version:
            raise Stale("the job has changed, and pods were about to be made for it")
        return decided

    def _makes_pods(self, job: Job, decided: Plan, memory: Memory) -> bool:
        """Whether the plan makes a pod whose turn has come."""
        reserved = memory.pods_reserved
        if reserved is not None and (reserved.at > self.clock() or self.world.behind()):
            return False
        return self._applier.makes_pods(job, decided, memory)

    async def _read_again(self, entry: Entry) -> None:
        job = entry.view.job
        try:
            raw = await self._api.get(job_path(job.namespace, job.name))
        except NotFound as error:
            raise Vanished(str(error)) from error
        if raw["metadata"]["uid"] != job.uid:
            self.job_changed(raw)
            raise Vanished("made anew under the same name")
        if version_of(raw["metadata"]) >= entry.view.version:
            try:
                entry.view = read_job(raw)
            except MalformedJob as error:
                raise ApiError(f"GET {job.name}", 0, "Malformed", str(error)) from error
        await self._applier.refresh_round(job)

    def _count_waiting(self, entry: Entry, number: int) -> None:
        number = 0 if entry.gone else number
        self._waiting += number - entry.waiting
        entry.waiting = number

    def _forget(self, key: Key, entry: Entry) -> None:
        entry.gone = True
        self._count_waiting(entry, 0)
        self._cancel_timer(entry)
        if self._entries.get(key) is entry:
            del self._entries[key]

    def _wake(self, entry: Entry, delay: float) -> None:
        """Let a pass begin after ``delay`` seconds at the latest."""
        at = self._loop.time() + max(delay, _SHORTEST_WAKE)
        if entry.gone or (entry.timer is not None and entry.wake_at <= at):
            return
        self._cancel_timer(entry)
        entry.wake_at = at
        entry.timer = self._loop.call_at(at, self._woken, entry)

    def _woken(self, entry: Entry) -> None:
        entry.timer = None
        entry.dirty = True
        self._work(entry)

    @staticmethod
    def _cancel_timer(entry: Entry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    async def _open(self) -> None:
        """Passes begin when everything has been listed once."""
        await self.world.synced()
        self._ready = True
        for namespace, name in list(self._entries):
            self.mark(namespace, name)

    async def _relist(self) -> None:
        """Take the list of jobs now and then: it finds jobs that came or went unseen."""
        while True:
            await asyncio.sleep(self.settings.relist_seconds * random.uniform(0.8, 1.2))
            for namespace in self.settings.namespaces or ("",):
                try:
                    await self.relist(namespace)
                except ApiError as error:
                    log.warning("the list of jobs could not be read: %s", error)

    async def _read_jobs(self, namespace: str) -> None:
        """Relist, again and again until it works."""
        for failures in itertools.count():
            try:
                await self._list_jobs(namespace)
                return
            except ApiError as error:
                if failures % 10 == 0:
                    log.warning("the list of jobs could not be read: %s", error)
                await asyncio.sleep(min(_EVENT_BACK_OFF, _FIRST_BACK_OFF * 2.0**failures))

    async def relist(self, namespace: str) -> None:
        """Compare the jobs known with those that there are; then give each a pass. Raises ApiError."""
        there = await self._list_jobs(namespace)
        await self._compare_owned(namespace)
        for key, entry in list(self._entries.items()):
            if not entry.gone and (not namespace or key[0] == namespace):
                self.mark(*key)
                await asyncio.sleep(min(1.0, self.settings.relist_seconds / 2 / max(1, there)))

    async def _compare_owned(self, namespace: str) -> None:
        """Somebody may have deleted or changed what a pod's identity needs, or what protects it."""

        def theirs() -> list[Entry]:
            return [
                entry
                for key, entry in self._entries.items()
                if (not namespace or key[0] == namespace) and not entry.view.status.finished
            ]

        if not theirs():
            return
        try:
            found = await survey(self._api, namespace, self.clock)
        except ApiError as error:
            log.warning("what jobs own could not be listed: %s", error)
            return
        for entry in theirs():
            if entry.pass_since is None:  # else it may be writing just now: next time
                found.compare(entry.view.job, entry.memory)

    async def _list_jobs(self, namespace: str) -> int:
        """Bring the jobs known up to date with those that there are; return their number. Raises ApiError."""
        uids: dict[Key, str] = {}

        def take(raw: Json) -> None:
            meta = raw["metadata"]
            uids[str(meta["namespace"]), str(meta["name"])] = str(meta["uid"])
            self.job_changed(raw)

        there, version = await read_list(self._api, _jobs_path(namespace), take, page=JOBS_PAGE)
        for key, entry in list(self._entries.items()):
            if entry.gone or (namespace and key[0] != namespace):
                continue
            same = key in there and uids[key] == entry.view.job.uid
            if not same and entry.view.version <= version:
                log.info("%s/%s: vanished unseen", *key)
                self._forget(key, entry)
        return len(there)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.ended.append(task.get_name())

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended", task.get_name(), exc_info=task.exception())


def _jobs_path(namespace: str) -> str:
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{scope}/{PLURAL}"


def _tell(before: JobView, decided: Plan) -> None:
    """One log line for each decision."""
    who = f"{before.job.namespace}/{before.job.name}"
    old, new = before.status.round, decided.status.round
    if (old.number, old.phase) != (new.number, new.phase):
        log.info(
            "%s: round %d %s, %d members, leader %s, cause %s: %s",
            who,
            new.number,
            new.phase,
            new.members,
            new.leader or "none",
            new.cause or "none",
            new.message or new.outcome or "-",
        )
    for event in decided.events:
        log.log(
            logging.WARNING if event.warning else logging.INFO, "%s: %s: %s", who, event.reason, event.message
        )
