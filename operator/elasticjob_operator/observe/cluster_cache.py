"""What the planner sees of one job: pods, Leases and nodes joined into an ``Observed``.

It also says whether this view is good enough to judge silence. Silence timers run only while the watches are
known to be good, the API server accepts writes (``write_outages``), and this process was not paused (I9).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from elasticjob.contract.names import JOB_LABEL, members_lease, round_lease
from elasticjob.rounds.state import RENEWED_WITHIN_SECONDS
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import ApiError
from elasticjob_operator.observe.fields import version_of
from elasticjob_operator.observe.informer import Informer, Read, read_one
from elasticjob_operator.observe.known_nodes import KnownNodes
from elasticjob_operator.observe.lists import PAGE, read_list
from elasticjob_operator.observe.objects import SeenAccount, SeenNode, T, read_account, read_node
from elasticjob_operator.observe.removed_pods import RemovedPods
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.observe.seen_pod import SeenPod, read_pod, without_old_mark
from elasticjob_operator.observe.seen_workload import SeenWorkload, read_workload, workloads_path
from elasticjob_operator.observe.store import Store
from elasticjob_operator.observe.write_outage_probe import WriteOutageProbe
from elasticjob_operator.plan.queue.workloads import Workload
from elasticjob_operator.plan.state.model import Job, Observed, Participant, Pod

Dirty = Callable[[str, str], None]
"""Called with (namespace, job) when something about that job is new."""

_STANDSTILL_SECONDS = 3.0
_PULSE_SECONDS = 0.5
_NEWEST_SECONDS = 5.0
"""How often it is asked how late the watches of Leases are."""
_AGE_SECONDS = 60.0
"""Longer than any request: an answer that is later than the watch comes within one."""
_BUSY_SECONDS = 1.0
_SLOW_SECONDS = 1.0
"""How long one page of a list may take; if it takes longer, renewals of Leases may not get through."""
_LATE_SECONDS = 5.0
"""A watch that is later than this is no evidence of silence: the shortest counts from 15 s."""
_MAX_ON_DELETED_NODES = 10_000
_MAX_ACCOUNTS_GONE = 1_000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watched:
    """The informers of one namespace, or of all ("")."""

    pods: Informer[SeenPod]
    leases: Informer[SeenLease]
    accounts: Informer[SeenAccount]
    workloads: Informer[SeenWorkload] | None


class ClusterCache:
    """See the module. ``namespaces`` empty: all of them. ``notices``: keys of taints that nodes have which
    are about to go; ``topology``: labels of their domains. ``queues``: Kueue's Workloads are watched, too."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        dirty: Dirty,
        clock: Callable[[], float],
        notices: Collection[str] = (),
        queues: bool = False,
        topology: Sequence[str] = (),
    ) -> None:
        self._api = api
        self._queues = queues
        self._dirty = dirty
        self._clock = clock
        self._pulse_at = clock()
        self.loop_lag = 0.0
        """Seconds by which the event loop was late at the last pulse."""
        self._standstills = 0
        self._late: set[object] = set()
        """The informers whose watch is late."""
        self._on_deleted_nodes: dict[str, None] = {}
        """UIDs of pods that were on a node when its object was deleted. Names of nodes come back."""
        self._removed = RemovedPods(clock)
        self.pods: Store[SeenPod] = Store(self._pod_changed, clock)
        self.leases: Store[SeenLease] = Store(self._lease_changed, clock, self._lease_written)
        self.nodes: Store[SeenNode] = Store(self._node_changed, clock)
        self.accounts: Store[SeenAccount] = Store(self._account_changed, clock)
        self.workloads: Store[SeenWorkload] = Store(self._workload_changed, clock)
        self._accounts_gone: dict[tuple[str, str, str], int] = {}
        """How often the account of a job (namespace, name, UID) was deleted, of those that were last."""
        self._watched = {ns: self._informers(ns) for ns in (namespaces or ("",))}
        self._known_nodes = KnownNodes(self.nodes)
        read = partial(read_node, notices=notices, topology=topology)
        self._nodes = Informer(api, "/api/v1/nodes", read, self.nodes, clock, optional=True)

    def informers(
        self,
    ) -> Iterable[
        Informer[SeenPod]
        | Informer[SeenLease]
        | Informer[SeenAccount]
        | Informer[SeenWorkload]
        | Informer[SeenNode]
    ]:
        """All informers, each to be run as a task."""
        for watched in self._watched.values():
            yield watched.pods
            yield watched.leases
            yield watched.accounts
            if watched.workloads is not None:
                yield watched.workloads
        yield self._nodes

    def reset(self) -> None:
        """The watches were cancelled and will be run again: all pods and Leases are listed then. The watches
        of nodes and accounts go on from where they were: no status depends on what they have not brought
        yet."""
        for watched in self._watched.values():
            watched.pods.reset()
            watched.leases.reset()
            watched.accounts.interrupted()
            if watched.workloads is not None:
                watched.workloads.reset()
        self._nodes.interrupted()

    async def synced(self) -> None:
        """Wait until everything has been listed once: nothing may be decided before."""
        for informer in self.informers():
            await informer.synced.wait()

    async def pulse(self) -> None:
        """Notice when this process stood still (stopped, starved, suspended), and find out whether what has
        failed fails everywhere; run it as a task."""
        probe = WriteOutageProbe(self._api, self.leases, self._clock)
        aged = self._clock()
        try:
            while True:
                await asyncio.sleep(_PULSE_SECONDS)
                now = self._clock()
                self.loop_lag = max(0.0, now - self._pulse_at - _PULSE_SECONDS)
                self._check_standstill(now)
                self._check_lateness()
                self._reopen_unanswered_watches()
                probe.begin()
                if now - aged > _AGE_SECONDS:
                    aged = now
                    stores = (self.pods, self.leases, self.nodes, self.accounts, self.workloads)
                    for age in (self._removed.age, *(store.age for store in stores)):
                        age()
        finally:
            await probe.aclose()

    async def ask_how_late(self) -> None:
        """Ask how late the watches of Leases are; run it as a task.

        Our own writes show that, too, but there may be none for minutes. While the API server was slow, or
        this process read slowly, the Leases of a thousand leaders seemed silent at once."""
        while True:
            await asyncio.sleep(_NEWEST_SECONDS)
            for watched in self._watched.values():
                with contextlib.suppress(ApiError):
                    await watched.leases.expect_newest()

    def behind(self) -> bool:
        """Whether a watch is late: the API server, or this process, has more to do than it can."""
        return any(informer.late() > _BUSY_SECONDS for informer in self.informers())

    def _check_lateness(self) -> None:
        """A participant is not silent while a write of its Lease may not have reached us yet."""
        for informer in self.informers():
            late = informer.late()
            if late > _LATE_SECONDS:
                if informer not in self._late:
                    text = "%s: the watch lags by %.1f s; not judging silence until it catches up"
                    log.warning(text, informer.path, late)
                self._late.add(informer)
                informer.stalled()
                informer.reopen(unless_since=self._clock() - _LATE_SECONDS)
            elif informer in self._late:
                self._late.remove(informer)
                log.info("%s: the watch has caught up", informer.path)

    def _reopen_unanswered_watches(self) -> None:
        """A request that got no answer may have gone to an API server that is dead, and watches with it."""
        for informer in self.informers():
            informer.reopen(unless_since=self._api.write_outages.last_unanswered)

    def continuity(self, namespace: str) -> tuple[int, ...]:
        """A value that changes whenever something may have been missed in that namespace."""
        self._check_standstill(self._clock())
        watched = self._watched_in(namespace)
        if watched is None:
            return (-1,)
        outages = self._api.write_outages.outages(namespace)
        return (self._standstills, watched.pods.gaps, watched.leases.gaps, outages)

    def trusted(self, namespace: str) -> bool:
        """Whether the watches of that namespace are connected now, and its participants can write."""
        watched = self._watched_in(namespace)
        return (
            watched is not None
            and watched.pods.good_since is not None
            and watched.leases.good_since is not None
            and not self._api.write_outages.is_outage(namespace, self._clock())
        )

    def covers(self, namespace: str) -> bool:
        """Whether that namespace is watched at all."""
        return self._watched_in(namespace) is not None

    def observe(self, job: Job) -> Observed:
        """Everything that is known now about one job, except what is published of its round."""
        now = self._clock()
        self._check_standstill(now)
        templated = job.spec.template is not None
        pods = self.pods.of_job(job.namespace, job.name)
        leases = self.leases.of_job(job.namespace, job.name)
        rounds = (round_lease(job.name), members_lease(job.name))
        good_since = self._leases_good_since(job.namespace)
        uncertain_since = self._api.write_outages.uncertain_since(job.namespace)
        until = now if uncertain_since is None else min(now, uncertain_since)
        participants: dict[str, Participant] = {}
        for name, lease in leases.items():
            if name not in rounds:
                participants[name] = self._participant(lease, good_since, until, now)
        return Observed(
            pods=tuple(
                without_old_mark(self._pod(pods[name], job.uid, templated), participants.get(name))
                for name in sorted(pods)
            ),
            leases=participants,
            nodes=self._known_nodes.ready if self._nodes.good_since is not None else None,
            domains=self._known_nodes.domains,
            account_made=next((account.made for account in self._accounts_of(job)), None),
            removed=self._removed.by_uid,
        )

    def pods_by_name(self, job: Job) -> dict[str, Pod]:
        """The job's pods, without what depends on their nodes."""
        return {name: seen.pod for name, seen in self.pods.of_job(job.namespace, job.name).items()}

    def unended_pods(self, namespace: str, name: str, uid: str) -> set[str]:
        """The pods of this job that may still use what they were scheduled with, by name."""
        pods = self.pods.of_job(namespace, name)
        return {pod for pod, seen in pods.items() if seen.owner == uid and not seen.pod.ended}

    def service_accounts(self, job: Job) -> tuple[str, ...]:
        """The service accounts of the job's pods."""
        return tuple(sorted({p.service_account for p in self.pods.of_job(job.namespace, job.name).values()}))

    def has_account(self, job: Job) -> bool:
        """Whether the watch shows the job's own service account."""
        return bool(self._accounts_of(job))

    def accounts_gone(self, job: Job) -> int:
        """How often the watch has shown that it was deleted."""
        return self._accounts_gone.get((job.namespace, job.name, job.uid), 0)

    def _accounts_of(self, job: Job) -> list[SeenAccount]:
        accounts = self.accounts.of_job(job.namespace, job.name).values()
        return [account for account in accounts if account.owner == job.uid]

    def pod_names(self, job: Job) -> dict[str, str]:
        """The names of the job's pods by UID."""
        return {seen.pod.uid: name for name, seen in self.pods.of_job(job.namespace, job.name).items()}

    def round_lease(self, job: Job) -> SeenLease | None:
        """The Lease ``<job>-round``, with any content."""
        return self.leases.get(job.namespace, round_lease(job.name))

    def members_lease(self, job: Job) -> SeenLease | None:
        """The Lease ``<job>.members-round``, with any content."""
        return self.leases.get(job.namespace, members_lease(job.name))

    async def read_again(self, job: Job) -> None:
        """List the job's pods and Leases: from now on the view is at least as new as what the status says
        about them. Raises ApiError."""
        base, watched = f"/namespaces/{job.namespace}", self._watched_in(job.namespace)
        newest = await _read_list_of(self._api, f"/api/v1{base}/pods", job, self.pods, read_pod)
        if watched is not None:
            watched.pods.expects(newest)
        leases = f"/apis/coordination.k8s.io/v1{base}/leases"
        newest = await _read_list_of(self._api, leases, job, self.leases, read_lease)
        if watched is not None:
            watched.leases.expects(newest)

    async def confirm_silence(self, job: Job, silent: Iterable[str]) -> None:
        """Ask the API server before silence is used: ``read_again``. The silence of a participant restarts
        now if it has renewed its Lease after all, or may have but for an API server that is too slow; that of
        all where it gives no answer. Raises ApiError."""
        before = self.versions(job, silent)
        spoken, began = list(before), self._clock()
        try:
            await self.read_again(job)
            seconds = self._clock() - began
            pods, leases = (store.of_job(job.namespace, job.name) for store in (self.pods, self.leases))
            if seconds <= _SLOW_SECONDS * (2 + len(pods) // PAGE + len(leases) // PAGE):
                after = self.versions(job, before)
                spoken = [name for name in before if before[name] != after[name]]
        finally:
            for name in spoken:
                self.leases.touch(job.namespace, name)

    def versions(self, job: Job, names: Iterable[str]) -> dict[str, int]:
        """The versions of these participants' Leases; 0 for one that is not there."""
        leases = {name: self.leases.get(job.namespace, name) for name in names}
        return {name: lease.version if lease is not None else 0 for name, lease in leases.items()}

    def retry(self, job: Job) -> None:
        """Something about the job must be looked at again."""
        self._dirty(job.namespace, job.name)

    def saw_pod(self, raw: Json, deleting: bool = False) -> None:
        """Take over the answer to a write of ours: the next pass must know of it already."""
        seen = read_pod(raw)
        if deleting and not seen.pod.deleting:
            seen = replace(seen, pod=replace(seen.pod, deleting=True))
        self.pods.answered(seen, quiet=True)
        watched = self._watched_in(seen.namespace)
        if watched is not None:
            watched.pods.expects(seen.version)

    def saw_lease(self, raw: Json) -> None:
        """Take over the answer to a write of ours."""
        seen = read_lease(raw, None)
        self.leases.answered(seen, quiet=True)
        watched = self._watched_in(seen.namespace)
        if watched is not None:
            watched.leases.expects(seen.version)

    def saw_workload(self, raw: Json) -> None:
        """Take over the answer to a write of ours; the next pass follows from it."""
        self.workloads.answered(read_workload(raw))

    def workloads_of(self, job: Job) -> tuple[Workload, ...] | None:
        """The job's own Workloads; None where they can't be seen."""
        watched = self._watched_in(job.namespace)
        if watched is None or watched.workloads is None or watched.workloads.unavailable:
            return None
        found = self.workloads.of_job(job.namespace, job.name).values()
        return tuple(one.workload for one in found if one.job_uid == job.uid)

    def _informers(self, namespace: str) -> Watched:
        scope = f"/namespaces/{namespace}" if namespace else ""

        def informer(path: str, read: Read[T], store: Store[T], **how: bool) -> Informer[T]:
            path = path.format(scope)
            return Informer(self._api, path, read, store, self._clock, JOB_LABEL, namespace=namespace, **how)

        return Watched(
            pods=informer("/api/v1{}/pods", read_pod, self.pods),
            leases=informer("/apis/coordination.k8s.io/v1{}/leases", read_lease, self.leases),
            accounts=informer("/api/v1{}/serviceaccounts", read_account, self.accounts, optional=True),
            workloads=(
                informer(
                    workloads_path(namespace), read_workload, self.workloads, optional=True, foreign=True
                )
                if self._queues
                else None
            ),
        )

    def _watched_in(self, namespace: str) -> Watched | None:
        return self._watched.get(namespace) or self._watched.get("")

    def _leases_good_since(self, namespace: str) -> float | None:
        watched = self._watched_in(namespace)
        if watched is None or watched.leases.good_since is None:
            return None
        return max(watched.leases.good_since, self._api.write_outages.good_since(namespace))

    def _participant(
        self, lease: SeenLease, good_since: float | None, until: float, now: float
    ) -> Participant:
        known, began = lease.participant, now if good_since is None else good_since
        changed = self.leases.changed_at(lease.namespace, lease.name)
        if changed > began and now - changed < RENEWED_WITHIN_SECONDS:
            return known  # a storm of joins need not copy them all
        silent = until - max(began, self.leases.silent_since(lease.namespace, lease.name))
        renewed = now - changed if changed > began else float("inf")
        return replace(known, silent=max(0.0, silent), renewed=renewed)

    def _pod(self, seen: SeenPod, job_uid: str, templated: bool) -> Pod:
        pod = seen.pod
        of_this_job = not templated or (seen.owner == job_uid and seen.made)
        node = self.nodes.get("", pod.node) if pod.node else None
        ready = node is None or node.ready
        gone = node is None and pod.uid in self._on_deleted_nodes
        unreachable = node is not None and node.unreachable
        off = node is not None and node.out_of_service
        notice = _notice(node, seen) if node is not None and node.notices else ""
        if of_this_job and ready and not gone and not unreachable and not off and not notice:
            return pod
        return replace(
            pod,
            of_this_job=of_this_job,
            node_ready=ready,
            node_gone=gone,
            unreachable=unreachable,
            out_of_service=off,
            notice=notice,
        )

    def _check_standstill(self, now: float) -> None:
        if now - self._pulse_at > _STANDSTILL_SECONDS:
            log.warning(
                "the process was paused for %.1f s; restarting all silence timers", now - self._pulse_at
            )
            self._standstills += 1
            for informer in self.informers():
                informer.stalled()
        self._pulse_at = now

    def _pod_changed(self, pod: SeenPod) -> None:
        if self.pods.get(pod.namespace, pod.name) is None:
            lease = self.leases.get(pod.namespace, pod.name)
            last = without_old_mark(pod.pod, lease.participant if lease is not None else None)
            self._removed.add(pod.namespace, last)
        self._dirty(pod.namespace, pod.job)

    def _lease_changed(self, lease: SeenLease) -> None:
        self._dirty(lease.namespace, lease.job)

    def _account_changed(self, account: SeenAccount) -> None:
        """A new account is news only where another one was deleted."""
        key = account.namespace, account.job, account.owner
        if self.accounts.get(account.namespace, account.name) is None:
            self._accounts_gone[key] = self._accounts_gone.pop(key, 0) + 1
            if len(self._accounts_gone) > _MAX_ACCOUNTS_GONE:
                del self._accounts_gone[next(iter(self._accounts_gone))]
        if key in self._accounts_gone:
            self._dirty(account.namespace, account.job)

    def _workload_changed(self, workload: SeenWorkload) -> None:
        self._dirty(workload.namespace, workload.job)

    def _lease_written(self, lease: SeenLease) -> None:
        self._api.write_outages.lease_written(lease.namespace, self._clock())

    def _node_changed(self, node: SeenNode) -> None:
        self._known_nodes = KnownNodes(self.nodes)
        theirs = [pod for pod in self.pods.all() if pod.pod.node == node.name]
        if self.nodes.get("", node.name) is None:
            self._on_deleted_nodes.update(dict.fromkeys(pod.uid for pod in theirs))
            while len(self._on_deleted_nodes) > _MAX_ON_DELETED_NODES:
                del self._on_deleted_nodes[next(iter(self._on_deleted_nodes))]
        for namespace, job in {(pod.namespace, pod.job) for pod in theirs}:
            self._dirty(namespace, job)


def _notice(node: SeenNode, pod: SeenPod) -> str:
    """The key of the node's first taint of notice that the pod does not tolerate, or ""."""
    for taint in node.notices:
        if not any(toleration.covers(taint) for toleration in pod.tolerations):
            return taint.key
    return ""


async def _read_list_of(
    api: Api,
    path: str,
    job: Job,
    store: Store[T],
    read: Read[T],
) -> int:
    """List the objects of one job into their store; what is not among them has been deleted. Return the
    version of the newest."""
    newest = 0

    def take(raw: Json) -> None:
        nonlocal newest
        item = read_one(path, raw, store, read)
        if item is not None:
            store.answered(item)
        newest = max(newest, version_of(raw["metadata"]))

    present, version = await read_list(api, path, take, {"labelSelector": f"{JOB_LABEL}={job.name}"})
    for name, item in list(store.of_job(job.namespace, job.name).items()):
        if (job.namespace, name) not in present:
            store.remove(job.namespace, name, item.uid, version)
    return newest
