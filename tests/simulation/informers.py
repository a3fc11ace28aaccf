"""The operator's informers in small: what it knows of the world, and how far that is to be believed.

It keeps the rules of ``observe/``: a cache takes no older version for a newer one; all clocks start again
with every gap; an outcome of a request is evidence on the API server; a watch that has not brought what an
answer has shown, and nothing else for as long, is opened anew.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from elasticjob.contract.round_record import RoundRecord
from elasticjob.rounds.state import RENEWED_WITHIN_SECONDS
from elasticjob.rounds.topology import Domains
from elasticjob_operator.observe.removed_pods import kept
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.state.model import Job, Observed, Participant, Pod
from elasticjob_operator.plan.state.status import JobStatus
from tests.simulation.api import (
    JOB_KEY,
    LIST_KEY,
    ROUND_KEY,
    Api,
    Client,
    Item,
    Key,
    NotFound,
    Unavailable,
    Watch,
)
from tests.simulation.cluster import NodeValue
from tests.simulation.ground import LeaseValue
from tests.simulation.kernel import Kernel, Script, Thread

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
QUEUES = {"workloads": ("workload",)}
"""Of an operator that heeds Kueue."""
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
    changed: dict[Key, float] = field(default_factory=dict)
    touched: dict[Key, float] = field(default_factory=dict)
    """When the silence of these began again although they had not changed."""
    gone: set[str] = field(default_factory=set)
    removed: dict[str, Pod] = field(default_factory=dict)
    """``observe.removed_pods``."""
    listed: dict[str, int] = field(default_factory=dict)
    """By kind, the version of its informer's last list."""

    def put(self, key: Key, item: Item, now: float) -> bool:
        """Returns whether it is news."""
        old = self.items.get(key)
        if (old is not None and item.version <= old.version) or item.uid in self.gone:
            return False
        if old is not None and old.uid != item.uid:
            self.remove(key, uid=old.uid)
        self.items[key] = item
        self.changed[key] = now
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
        said = kept(old.value) if key[0] == "pod" else None
        if said is not None:
            self.removed[old.uid] = said
        return True


class Informers(Client):
    """The caches of one operator process, and their watches. ``news`` is called when there is some."""

    def __init__(self, kernel: Kernel, api: Api, name: str, queued: bool = False) -> None:
        super().__init__(kernel, name)
        self.api = api
        self._streams = STREAMS | QUEUES if queued else STREAMS
        self.api_path = True
        self.cache = Cache()
        self.write_outages = WriteOutages()
        self.domains: dict[str, Domains] = {}
        self.ready = False
        self._gaps = 0
        self._good_since: float | None = None
        self._trials: Thread | None = None
        self._ran_at = kernel.now
        self._stood_still = False
        self._on_deleted_nodes: set[str] = set()
        """Pods that were on a node when its object was deleted."""
        self._listed: set[str] = set()
        self.watches = {name: self._watch(name, kinds) for name, kinds in self._streams.items()}

    def news(self) -> None:
        """Something has changed."""
        raise NotImplementedError

    @property
    def good(self) -> bool:
        """Whether the watches that judge a silence are there."""
        return all(self.watches[name].good for name in JUDGED)

    @property
    def continuity(self) -> int:
        """Another number after a gap, of whatever kind."""
        return self._gaps + self.write_outages.outages(NAMESPACE)

    def _watch(self, name: str, kinds: tuple[str, ...]) -> Watch:
        """One informer; what it brings is in order, and in no order with what the others bring."""

        def relist(items: dict[Key, Item], version: int) -> None:
            self._replace(items, version, kinds, self.cache.put)
            self.cache.listed.update(dict.fromkeys(kinds, version))
            self._listed.add(name)
            self.ready = len(self._listed) == len(self._streams)
            if name in JUDGED:
                self._gaps += 1
            self.news()

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

    def thaw(self) -> None:
        """SIGCONT: the pulse notices that it stood still, if it did."""
        self._stood_still |= self.frozen
        super().thaw()

    def _take(self, key: Key, item: Item | None, version: int, put: Put | None = None) -> None:
        now, put = self.kernel.now, put or self.cache.put
        if key[0] == "node" and item is None:
            self._on_deleted_nodes |= {
                i.uid for k, i in self.cache.items.items() if k[0] == "pod" and i.value.node == key[1]
            }
        if item is not None and key[0] in ("lease", "round") and key in self.cache.items:
            self.write_outages.lease_written(NAMESPACE, now)
        if self.cache.remove(key, version) if item is None else put(key, item, now):
            self.news()

    def forget(self, key: Key, uid: str) -> None:
        """A request of ours has shown that this very object is gone."""
        if self.cache.remove(key, uid=uid):
            self.news()

    def _replace(self, items: dict[Key, Item], version: int, kinds: tuple[str, ...], put: Put) -> None:
        for key, item in items.items():
            self._take(key, item, version, put)
        for key in [key for key in self.cache.items if key[0] in kinds and key not in items]:
            self._take(key, None, version)

    def send(self, work: Callable[[], Any], reads: bool = False) -> Script:
        """One request; its outcome is evidence on the API server, as in ``observe.write_outages``."""
        began = self.kernel.now
        try:
            answer = yield self.api.request(self, work)
        except Unavailable:
            self._doubt(LEASES, began)
            raise
        if not reads:
            self.write_outages.got_through(LEASES, self.kernel.now)
        return answer

    def neighbour_fails(self) -> None:
        """A write for a job in another namespace gets no proper answer."""
        if self.alive and not self.frozen:
            self._doubt("/namespaces/another/pods", self.kernel.now - 1.0)

    def _doubt(self, path: str, began: float) -> None:
        self.write_outages.failed(path, began, self.kernel.now)
        if self._trials is None or self._trials.done:
            self._trials = self.spawn(self._try())

    def _try(self) -> Script:
        """``observe.write_outage_probe``."""
        while self.write_outages.uncertain_since(NAMESPACE) is not None:
            yield 0.5
            with contextlib.suppress(Unavailable, NotFound):
                yield self.api.request(self, lambda: self.api.get(ROUND_KEY))
                self.write_outages.got_through(LEASES, self.kernel.now)

    def check_standstill(self) -> None:
        """A process that has stood still has missed what came."""
        if self.kernel.now - self._ran_at > 3.0 and self._stood_still:
            self._gaps += 1
            self._good_since = self.kernel.now
        self._stood_still = False
        self._ran_at = self.kernel.now

    def list_again(self) -> Script:
        """``ClusterCache.read_again``: another operator wrote the status, so what it says may be newer than
        the caches of pods and Leases."""
        kinds = ("pod", "lease", "round", "list")

        def everything() -> tuple[dict[Key, Item], int]:
            return {k: i for k, i in self.api.items.items() if k[0] in kinds}, len(self.api.log)

        items, version = yield from self.send(everything, reads=True)
        self._replace(items, version, kinds, self.cache.answered)
        for name in JUDGED:
            self.expects(name, max((i.version for k, i in items.items() if k[0] in STREAMS[name]), default=0))

    def expects(self, name: str, version: int) -> None:
        """``Informer.expects``: the watch is to bring what an answer has shown."""
        if version > self.watches[name].version:
            self.kernel.after(LATE_SECONDS, self._check_lateness, name, version)

    def _check_lateness(self, name: str, version: int) -> None:
        """``ClusterCache._check_lateness``."""
        watch = self.watches[name]
        if not self.alive or watch.version >= version:
            return
        if self.frozen:
            self.when_thawed(lambda: self._check_lateness(name, version))
            return
        if watch.good:
            self._gaps += 1
            self._good_since = self.kernel.now
            if watch.last_event_at <= self.kernel.now - LATE_SECONDS:
                watch.reopen()
        self.kernel.after(0.5, self._check_lateness, name, version)

    def read_again(self, item: Item) -> Script:
        try:
            read = yield from self.send(lambda: self.api.get(JOB_KEY), reads=True)
        except NotFound as error:
            self.cache.remove(JOB_KEY, uid=item.uid)
            raise Vanished from error
        news = self.cache.answered(JOB_KEY, read, self.kernel.now)
        if read.uid != item.uid:
            if news:
                self.news()  # the watch may bring it later, and then it is none
            raise Vanished
        for key in (ROUND_KEY, LIST_KEY):
            there = self.cache.items.get(key)
            try:
                read = yield from self.send(partial(self.api.get, key), reads=True)
                self.cache.answered(key, read, self.kernel.now)
            except NotFound:
                if there is not None:
                    self.forget(key, there.uid)

    def observe(self, job: Job) -> Observed:
        """The caches joined, as ``ClusterCache.observe`` does it."""
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
            good = max(good, self.write_outages.good_since(NAMESPACE))
        uncertain_since = self.write_outages.uncertain_since(NAMESPACE)
        until = now if uncertain_since is None else min(now, uncertain_since)
        for key, item in self.cache.items.items():
            if key[0] == "pod":
                pod: Pod = item.value
                node = nodes.get(pod.node)
                if node is not None and not node.ready:
                    pod = replace(pod, node_ready=False, unreachable=True, out_of_service=node.out_of_service)
                elif node is not None and node.notice:
                    pod = replace(pod, notice=node.notice)
                elif pod.node and node is None and pod.uid in self._on_deleted_nodes:
                    pod = replace(pod, node_gone=True)
                if job.spec.template is not None and not pod.uid.startswith(f"{job.uid}-"):
                    pod = replace(pod, of_this_job=False)
                pods.append(pod)
            elif key[0] == "lease":
                lease: LeaseValue = item.value
                silent, renewed = self._silence_of(key, good, until)
                leases[key[1]] = Participant(
                    key[1],
                    lease.holder,
                    lease.record,
                    lease.failure,
                    lease.report,
                    silent=silent,
                    renewed=renewed,
                    progress=lease.progress,
                    finished=lease.finished,
                    drain=lease.drain,
                    fenced=lease.fenced,
                    starts=lease.starts,
                    relay=lease.relay,
                )
            elif key[0] == "round" and item.value.job_uid == job.uid:
                record = item.value
            elif key[0] == "list" and item.value.job_uid == job.uid:
                listed = item.value.number
        ready = frozenset(name for name, node in nodes.items() if node.ready)
        return Observed(
            tuple(sorted(pods, key=lambda p: p.name)),
            leases,
            record,
            ready,
            member_list_round=listed,
            domains=self.domains,
            removed=self.cache.removed,
        )

    def _silence_of(self, key: Key, good: float | None, until: float) -> tuple[float, float | None]:
        """``Participant.silent`` and ``renewed``, as ``ClusterCache._participant`` has them."""
        now, changed = self.kernel.now, self.cache.changed[key]
        began = now if good is None else good
        if changed > began and now - changed < RENEWED_WITHIN_SECONDS:
            return 0.0, None
        silent = until - max(began, changed, self.cache.touched.get(key, changed))
        return max(0.0, silent), now - changed if changed > began else math.inf
