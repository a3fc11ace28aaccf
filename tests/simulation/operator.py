"""The operator's shell in small: informers' caches, passes, and writes in the order of the protocol.

It keeps the rules of ``controller/`` and ``act/``: a pass starts from a status at least as new as the
operator's own last write; the status is written first, with its version; the round Lease never goes
back; what is stale is read again from the API server; timers die with every gap; a write that fails waits
for itself and holds up nothing else; nobody is given up for a silence before pods and Leases were listed; a
watch that has not brought what an answer has shown, and nothing else for as long, is opened anew.
The planner is the real one.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

from elasticjob.contract.names import pod_name
from elasticjob.contract.records import INLINE_MEMBERS, MemberList, RoundRecord
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.act.attempts import ROUND, STATUS, VERBS, Attempts, Target, target_of
from elasticjob_operator.observe import errors
from elasticjob_operator.observe.answers import Answers
from elasticjob_operator.plan import rounds
from elasticjob_operator.plan.model import (
    CreatePod,
    DeleteJob,
    DeletePod,
    Do,
    Job,
    LabelStandby,
    Now,
    Observed,
    Participant,
    Plan,
    Pod,
)
from elasticjob_operator.plan.planner import meanwhile, plan
from elasticjob_operator.plan.status import JobStatus
from tests.simulation.agent import LIST_KEY
from tests.simulation.api import Api, Client, Conflict, Item, Key, NotFound, Refused, Unavailable, Watch
from tests.simulation.cluster import NodeValue
from tests.simulation.ground import LeaseValue
from tests.simulation.kernel import Kernel, Script, Thread
from tests.simulation.owned import Owned

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB_KEY: Key = ("job", "")
ROUND_KEY: Key = ("round", "")
REREADS = 5
LATE_SECONDS = 5.0
NAMESPACE = "ns"
LEASES = f"/namespaces/{NAMESPACE}/leases"
STREAMS: dict[str, tuple[str, ...]] = {
    "jobs": ("job",),
    "pods": ("pod",),
    "leases": ("lease", "round", "list"),
    "nodes": ("node",),
}
"""The informers, each with a watch of its own."""
JUDGED = ("pods", "leases")
"""Those whose gaps start all clocks again."""


Put = Callable[[Key, Item, float], bool]
"""Takes over a version of an object."""


class JobValue(NamedTuple):
    """The ElasticJob: what is wanted, and the status as one text (what an operator writes it can read)."""

    job: Job
    status: JobStatus


class Stale(Exception):
    """Read again and plan again."""


class Vanished(Exception):
    """The job is gone, or another one bears its name."""


@dataclass
class Cache:
    """The informers' stores: by key the newest version heard of, and when it last changed."""

    items: dict[Key, Item] = field(default_factory=dict)
    touched: dict[Key, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    listed: dict[str, int] = field(default_factory=dict)
    """By kind, the version of its informer's last list."""

    def put(self, key: Key, item: Item, now: float) -> bool:
        """Returns whether it is news."""
        old = self.items.get(key)
        if (old is not None and item.version <= old.version) or item.uid in self.gone:
            return False
        self.items[key] = item
        self.touched[key] = now
        return old is None or (old.value, old.uid) != (item.value, item.uid)

    def answered(self, key: Key, item: Item, now: float) -> bool:
        """The same for the answer to a request, unless a list that came first shows that it has gone."""
        return (key in self.items or item.version > self.listed.get(key[0], 0)) and self.put(key, item, now)

    def remove(self, key: Key, version: int | None = None, uid: str = "") -> bool:
        """Unless it is newer than ``version`` or another one. Returns whether it was there."""
        old = self.items.get(key)
        if old is None or (version is not None and old.version > version) or (uid and old.uid != uid):
            return False
        del self.items[key]
        self.gone.add(old.uid)
        return True


class Operator(Client):
    """One operator process. ``wall`` and ``mono`` are what its clocks are off by, in seconds."""

    def __init__(
        self, kernel: Kernel, api: Api, name: str, wall: float, mono: float, told: Callable[[str], None]
    ) -> None:
        super().__init__(kernel, name)
        self.api = api
        self.api_path = True
        self.wall, self.mono = wall, mono
        self.cache = Cache()
        self.timers: dict[WaitKey, float] = {}
        self._own = random.Random(kernel.rng.getrandbits(32))
        """For nonces: a pass more or less changes nothing else of the history."""
        self.inline_members = INLINE_MEMBERS
        """Of the history: rounds of two are large in some."""
        self.owned: Owned | None = None
        """Set in histories in which writing these fails."""
        self.passes = 0
        self._told = told
        self._gaps = 0
        self._continuity = -1
        self._good_since: float | None = None
        self.answers = Answers()
        self._trials: Thread | None = None
        self._ran_at = kernel.now
        self._dirty = self._heard = True
        self.attempts = Attempts(lambda: self.kernel.between(0.75, 1.25))
        self._ready = False
        self._orphans: set[str] = set()
        """Pods that were on a node when its object was deleted."""
        self._known = JobStatus()
        """The status as this operator has written it, or has listed pods and Leases after."""
        self._waiting_at = float("-inf")
        self._listed: set[str] = set()
        self.watches = {name: self._watch(name, kinds) for name, kinds in STREAMS.items()}
        self._loop: Thread = self.spawn(self._run())

    def _watch(self, name: str, kinds: tuple[str, ...]) -> Watch:
        """One informer; what it brings is in order, and in no order with what the others bring."""

        def relist(items: dict[Key, Item], version: int) -> None:
            self._replace(items, version, kinds, self.cache.put)
            self.cache.listed.update(dict.fromkeys(kinds, version))
            self._listed.add(name)
            self._ready = len(self._listed) == len(STREAMS)
            if name in JUDGED:
                self._gaps += 1
            self._mark()

        def connected(seconds: float) -> None:
            if name in JUDGED and (seconds > 1.0 or self._good_since is None):
                self._gaps += 1
                self._good_since = self.kernel.now

        return Watch(
            self.api, self, lambda key: key[0] in kinds, self._take, relist, connected, may_be_old=False
        )

    def reaches_api(self) -> bool:
        """See ``Client``."""
        return self.api_path

    def die(self) -> None:
        """SIGKILL."""
        super().die()
        for watch in self.watches.values():
            watch.close()

    # -- what the watches bring ----------------------------------------------------------------------------

    def _take(self, key: Key, item: Item | None, version: int, put: Put | None = None) -> None:
        now, put = self.kernel.now, put or self.cache.put
        if key[0] == "node" and item is None:
            self._orphans |= {
                i.uid for k, i in self.cache.items.items() if k[0] == "pod" and i.value.node == key[1]
            }
        if item is not None and key[0] in ("lease", "round") and key in self.cache.items:
            self.answers.lease_written(NAMESPACE, now)
        if self.cache.remove(key, version) if item is None else put(key, item, now):
            self._mark()

    def _replace(self, items: dict[Key, Item], version: int, kinds: tuple[str, ...], put: Put) -> None:
        for key, item in items.items():
            self._take(key, item, version, put)
        for key in [key for key in self.cache.items if key[0] in kinds and key not in items]:
            self._take(key, None, version)

    def _mark(self) -> None:
        self._dirty = self._heard = True
        self._loop.wake()

    def again(self) -> None:
        """A write that no pass has waited for has ended."""
        self._mark()

    # -- passes --------------------------------------------------------------------------------------------

    def _run(self) -> Script:
        failures = 0
        while True:
            while not self._ready:
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
                yield from self._list_again()
                self._known = item.value.status
            try:
                return (yield from self._plan_and_write(item, fresh))
            except Stale:
                if attempt == REREADS - 1:
                    raise
                yield from self._read_again(item)
                fresh = True
        return None

    def send(self, work: Callable[[], Any], reads: bool = False) -> Script:
        """One request; its outcome is evidence on the API server, as in ``observe.answers``."""
        began = self.kernel.now
        try:
            answer = yield self.api.request(self, work)
        except Unavailable:
            self._doubt(LEASES, began)
            raise
        if not reads:
            self.answers.got_through(LEASES, self.kernel.now)
        return answer

    def neighbour_fails(self) -> None:
        """A write for a job in another namespace gets no proper answer."""
        if self.alive and not self.frozen:
            self._doubt("/namespaces/another/pods", self.kernel.now - 1.0)

    def _doubt(self, path: str, began: float) -> None:
        self.answers.failed(path, began, self.kernel.now)
        if self._trials is None or self._trials.done:
            self._trials = self.spawn(self._try())

    def _try(self) -> Script:
        """``observe.trials``."""
        while self.answers.doubted_since(NAMESPACE) is not None:
            yield 0.5
            with contextlib.suppress(Unavailable, NotFound):
                yield self.api.request(self, lambda: self.api.get(ROUND_KEY))
                self.answers.got_through(LEASES, self.kernel.now)

    def _check_standstill(self) -> None:
        if self.kernel.now - self._ran_at > 3.0 and self._stood_still:
            self._gaps += 1
            self._good_since = self.kernel.now
        self._stood_still = False
        self._ran_at = self.kernel.now

    _stood_still = False

    def thaw(self) -> None:
        """SIGCONT: the pulse notices that it stood still, if it did."""
        self._stood_still |= self.frozen
        super().thaw()

    def _plan_and_write(self, item: Item, fresh: bool) -> Script:
        value: JobValue = item.value
        self._check_standstill()
        good = all(self.watches[name].good for name in JUDGED)
        continuity = self._gaps + self.answers.outages(NAMESPACE)
        if self._continuity != continuity or not good or self.answers.is_outage(NAMESPACE, self.kernel.now):
            self.timers = {}
        if self._continuity != continuity:
            self.attempts.again(passing=True)
        self._continuity = continuity
        now = Now(
            EPOCH + timedelta(seconds=self.kernel.now + self.wall),
            self.kernel.now + self.mono,
            f"{self._own.getrandbits(32):08x}",
        )
        self.passes += 1
        hurried, self._heard = self._heard, False
        observed = replace(self.observe(value.job), troubles=self.attempts.troubles())
        decided = self._small_records(plan, value.job, value.status, observed, now, self.timers)
        if decided.given_up:
            yield from self._look()
            if self.cache.items.get(JOB_KEY) is not item:
                raise Stale
            observed = replace(self.observe(value.job), troubles=self.attempts.troubles())
            decided = self._small_records(plan, value.job, value.status, observed, now, self.timers)
        may_project = self._check(value.job, decided.record, fresh)
        written = yield from self._try_status(item, decided, hurried)
        if written:
            self.timers = dict(decided.timers)
        else:
            self.timers = {**decided.timers, **self.timers}
            decided = self._small_records(meanwhile, value.job, value.status, observed, now, decided)
            may_project = self._check(value.job, decided.record, True) and value.status.start is not None
        postponed = None
        if may_project and self.attempts.due(ROUND, self.kernel.now, hurried):
            try:
                if decided.members is not None:
                    yield from self._list(value.job, decided.members)
                postponed = yield from self._project(value.job, decided.record)
                self.attempts.done(ROUND)
            except (Unavailable, Refused) as error:
                self.failed(ROUND, error)
        actions: Sequence[Do] = decided.actions
        if self.owned is not None:
            self.owned.keep(value.job, decided)
            self.owned.tell(decided.events)
            actions = self.owned.possible(value.job, actions)
        wanted = [(target_of(value.job, action), action) for action in actions]
        for verb in VERBS:
            self.attempts.keep(verb, [target for target, _ in wanted])
        for target, action in wanted:
            if self.attempts.due(target, self.kernel.now):
                try:
                    yield from self._act(value.job, action)
                    self.attempts.done(target)
                except (Unavailable, Refused) as error:
                    self.failed(target, error)
        under_way = () if self.owned is None else self.owned.under_way
        delays = [decided.wake_after, postponed, self.attempts.wake_after(self.kernel.now, under_way)]
        return min((d for d in delays if d is not None), default=None)

    def _try_status(self, item: Item, decided: Plan, hurried: bool) -> Script:
        """Whether the status is as decided now."""
        if decided.status == item.value.status:
            self.attempts.done(STATUS)
            return True
        if not self.attempts.due(STATUS, self.kernel.now, hurried):
            return False
        try:
            written = yield from self.send(lambda: self._write_status(item, decided))
        except (Unavailable, Refused) as error:
            self.failed(STATUS, error)
            return False
        self.attempts.done(STATUS)
        self.cache.answered(JOB_KEY, written, self.kernel.now)
        self._known = decided.status
        return True

    def failed(self, target: Target, why: Exception) -> None:
        error: errors.ApiError = errors.Unavailable(target.name, 503, "", "unavailable")
        if isinstance(why, Refused):
            error = errors.Forbidden(target.name, 403, "Forbidden", str(why))
        self.attempts.failed(target, error, self.kernel.now)

    def _small_records(self, decide: Callable[..., Plan], *given: Any) -> Plan:
        rounds.INLINE_MEMBERS, usual = self.inline_members, rounds.INLINE_MEMBERS
        try:
            return decide(*given)
        finally:
            rounds.INLINE_MEMBERS = usual

    def observe(self, job: Job) -> Observed:
        """The caches joined, as ``World.observe`` does it."""
        now = self.kernel.now
        pods: list[Pod] = []
        leases: dict[str, Participant] = {}
        record: RoundRecord | None = None
        listed = 0
        nodes: dict[str, NodeValue] = {
            key[1]: item.value for key, item in self.cache.items.items() if key[0] == "node"
        }
        good = self._good_since if self.watches["leases"].good else None
        if good is not None:
            good = max(good, self.answers.good_since(NAMESPACE))
        doubted = self.answers.doubted_since(NAMESPACE)
        until = now if doubted is None else min(now, doubted)
        for key, item in self.cache.items.items():
            if key[0] == "pod":
                pod: Pod = item.value
                node = nodes.get(pod.node)
                if node is not None and not node.ready:
                    pod = replace(pod, node_ready=False, unreachable=True, out_of_service=node.out_of_service)
                elif pod.node and node is None and pod.uid in self._orphans:
                    pod = replace(pod, node_gone=True)
                if job.spec.template is not None and not pod.uid.startswith(f"{job.uid}-"):
                    pod = replace(pod, mine=False)
                pods.append(pod)
            elif key[0] == "lease":
                lease: LeaseValue = item.value
                silent = 0.0 if good is None else max(0.0, until - max(self.cache.touched[key], good))
                leases[key[1]] = Participant(
                    key[1],
                    lease.holder,
                    lease.record,
                    lease.failure,
                    lease.report,
                    silent=silent,
                    progress=lease.progress,
                    finished=lease.finished,
                )
            elif key[0] == "round" and item.value.job_uid == job.uid:
                record = item.value
            elif key[0] == "list" and item.value.job_uid == job.uid:
                listed = item.value.number
        ready = frozenset(name for name, node in nodes.items() if node.ready)
        return Observed(tuple(sorted(pods, key=lambda p: p.name)), leases, record, ready, listed=listed)

    def _check(self, job: Job, record: RoundRecord, fresh: bool) -> bool:
        """``LeaseRoundPublisher.check``."""
        listed = self.cache.items.get(LIST_KEY)
        if listed is not None and not fresh and _list_ahead(listed.value, job, record.number):
            raise Stale
        there = self.cache.items.get(ROUND_KEY)
        if there is None or there.value.job_uid != job.uid:
            return True
        ahead: bool = there.value.ahead_of(record)
        if ahead and not fresh:
            raise Stale
        return not ahead

    def _write_status(self, item: Item, decided: Plan) -> Item:
        """The JSON patch with its tests of UID and version."""
        there = self.api.get(JOB_KEY)
        if there.uid != item.uid or there.version != item.version:
            raise Conflict("the ElasticJob is not the one that was planned on")
        return self.api.put(JOB_KEY, JobValue(item.value.job, decided.status), version=item.version)

    def _list(self, job: Job, members: MemberList) -> Script:
        """``LeaseRoundPublisher._list``."""
        there = self.cache.items.get(LIST_KEY)
        try:
            if there is not None and there.value.job_uid != job.uid:
                gone = there
                yield from self.send(lambda: self.api.remove(LIST_KEY, gone.uid))
                self.cache.remove(LIST_KEY, uid=gone.uid)
                there = None
            if there is None:
                put = yield from self.send(lambda: self.api.create(LIST_KEY, members))
            elif _list_ahead(there.value, job, members.number):
                raise Stale
            elif there.value.head == members.head:
                return
            else:
                version = there.version
                put = yield from self.send(lambda: self.api.put(LIST_KEY, members, version=version))
            self.cache.answered(LIST_KEY, put, self.kernel.now)
        except NotFound as error:
            self.cache.remove(LIST_KEY)
            raise Stale from error
        except Conflict as error:
            raise Stale from error

    def _project(self, job: Job, record: RoundRecord) -> Script:
        """``LeaseRoundPublisher.write``. Returns seconds until a postponed write is due."""
        there = self.cache.items.get(ROUND_KEY)
        try:
            if there is not None and there.value.job_uid != job.uid:
                gone = there
                yield from self.send(lambda: self.api.remove(ROUND_KEY, gone.uid))
                self.cache.remove(ROUND_KEY, uid=gone.uid)
                there = None
            if there is None:
                made = yield from self.send(lambda: self.api.create(ROUND_KEY, record))
                self.cache.answered(ROUND_KEY, made, self.kernel.now)
                self._owes("leases", made.version)
                return None
            if there.value.ahead_of(record):
                raise Stale
            if there.value == record:
                return None
            if replace(there.value, waiting=record.waiting) == record:
                left = self._waiting_at + 10.0 - self.kernel.now
                if left > 0:
                    return left
            self._waiting_at = self.kernel.now
            version = there.version
            put = yield from self.send(lambda: self.api.put(ROUND_KEY, record, version=version))
            self.cache.answered(ROUND_KEY, put, self.kernel.now)
            self._owes("leases", put.version)
        except NotFound as error:
            self.cache.remove(ROUND_KEY)
            raise Stale from error
        except Conflict as error:
            raise Stale from error
        return None

    def _act(self, job: Job, action: Do) -> Script:
        """``PodWriter``."""
        if isinstance(action, CreatePod):
            name = pod_name(job.name, action.slot, action.attempt)
            uid = f"{job.uid}-{self.kernel.rng.getrandbits(32):08x}"
            pod = Pod(name, uid, slot=action.slot, attempt=action.attempt, avoids=action.avoid)
            try:
                made = yield from self.send(lambda: self.api.create(("pod", name), pod, uid))
                self.cache.answered(("pod", name), made, self.kernel.now)
                self._owes("pods", made.version)
            except Conflict:
                self._mark()
        elif isinstance(action, DeletePod):
            self._told(f"{self.name} deletes {action.name}: {action.why}")
            try:
                left = yield from self.send(lambda: self.delete_pod(action.name, action.uid))
                if left is not None:
                    self.cache.answered(("pod", action.name), left, self.kernel.now)
                else:
                    self.cache.remove(("pod", action.name), uid=action.uid)
            except (NotFound, Conflict):
                self.cache.remove(("pod", action.name), uid=action.uid)
        elif isinstance(action, LabelStandby):
            yield from self._label(action)
        elif isinstance(action, DeleteJob):
            self._told(f"{self.name} deletes the job: {action.why}")
            with contextlib.suppress(NotFound, Conflict):
                yield from self.send(lambda: self.delete_job(job.uid))
        else:
            seen = self.cache.items.get(("lease", action.name))
            if seen is None:
                return
            with contextlib.suppress(NotFound, Conflict):
                yield from self.send(lambda: self.api.remove(("lease", action.name), seen.uid))
            self.cache.remove(("lease", action.name), uid=seen.uid)

    def _label(self, action: LabelStandby) -> Script:
        """The patch of one label, with a test of the UID."""

        def patch() -> Item:
            there = self.api.get(("pod", action.name))
            if there.uid != action.uid:
                raise NotFound(action.name)
            return self.api.put(("pod", action.name), replace(there.value, standby=action.standby), there.uid)

        with contextlib.suppress(NotFound, Conflict):
            put = yield from self.send(patch)
            self.cache.answered(("pod", action.name), put, self.kernel.now)

    def _list_again(self) -> Script:
        """``World.read_again``: somebody else has written the status, so what it says may be newer than the
        caches of pods and Leases."""
        kinds = ("pod", "lease", "round", "list")

        def everything() -> tuple[dict[Key, Item], int]:
            return {k: i for k, i in self.api.items.items() if k[0] in kinds}, len(self.api.log)

        items, version = yield from self.send(everything, reads=True)
        self._replace(items, version, kinds, self.cache.answered)
        for name in JUDGED:
            self._owes(name, max((i.version for k, i in items.items() if k[0] in STREAMS[name]), default=0))

    def _look(self) -> Script:
        """``World.look``."""
        yield from self._list_again()

    def _owes(self, name: str, version: int) -> None:
        """``Informer.owes``: the watch is to bring what an answer has shown."""
        if version > self.watches[name].version:
            self.kernel.after(LATE_SECONDS, self._check_lateness, name, version)

    def _check_lateness(self, name: str, version: int) -> None:
        """``World._check_lateness``."""
        watch = self.watches[name]
        if not self.alive or watch.version >= version:
            return
        if self.frozen:
            self.when_thawed(lambda: self._check_lateness(name, version))
            return
        if watch.good:
            self._gaps += 1
            self._good_since = self.kernel.now
            if watch.heard_at <= self.kernel.now - LATE_SECONDS:
                watch.reopen()
        self.kernel.after(0.5, self._check_lateness, name, version)

    delete_pod: Callable[[str, str], Item | None]
    """The cluster's; set by the world."""

    delete_job: Callable[[str], None]
    """The world's."""

    def _read_again(self, item: Item) -> Script:
        try:
            read = yield from self.send(lambda: self.api.get(JOB_KEY), reads=True)
        except NotFound as error:
            self.cache.remove(JOB_KEY)
            raise Vanished from error
        self.cache.answered(JOB_KEY, read, self.kernel.now)
        if read.uid != item.uid:
            raise Vanished
        for key in (ROUND_KEY, LIST_KEY):
            try:
                read = yield from self.send(partial(self.api.get, key), reads=True)
                self.cache.answered(key, read, self.kernel.now)
            except NotFound:
                self.cache.remove(key)


def _list_ahead(there: MemberList, job: Job, number: int) -> bool:
    return there.job_uid == job.uid and there.number > number
