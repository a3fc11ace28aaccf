"""What the operator writes beside the status, in small: the round and its list of members, pods, Leases.

It keeps the rules of ``act/``: the round Lease never goes back, another job's is removed first, and what an
answer has shown is taken over into the caches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from elasticjob.contract.round_record import MemberList, RoundRecord
from elasticjob_operator.plan.state.model import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    Job,
    PatchPod,
    Pod,
)
from tests.simulation.agent import HOOK_REPLACE_SECONDS, HOOK_SECONDS
from tests.simulation.api import LIST_KEY, ROUND_KEY, Conflict, Item, Key, NotFound
from tests.simulation.informers import Informers, Stale
from tests.simulation.kernel import Script

WAITING_SECONDS = 10.0
"""How far apart writes are that change nothing but the sentence on what the next round waits for."""


class RoundPublisher:
    """``LeaseRoundPublisher``."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._waiting_at = float("-inf")

    def check(self, job: Job, record: RoundRecord, fresh: bool) -> bool:
        """Whether the round Lease is not ahead of this record. Raises Stale."""
        items = self._informers.cache.items
        listed = items.get(LIST_KEY)
        if listed is not None and not fresh and _list_ahead(listed.value, job, record.number):
            raise Stale
        there = items.get(ROUND_KEY)
        if there is None or there.value.job_uid != job.uid:
            return True
        ahead: bool = there.value.ahead_of(record)
        if ahead and not fresh:
            raise Stale
        return not ahead

    def write(self, job: Job, record: RoundRecord, members: MemberList | None) -> Script:
        """Returns seconds until a postponed write is due. Raises Stale."""
        if members is not None:
            yield from self._or_stale(self._list(job, members))
        return (yield from self._or_stale(self._round(job, record)))

    def _list(self, job: Job, members: MemberList) -> Script:
        there = yield from self._of_this_job(LIST_KEY, job)
        if there is not None and _list_ahead(there.value, job, members.number):
            raise Stale
        if there is None or there.value.head != members.head:
            yield from self._put(LIST_KEY, members, there)

    def _round(self, job: Job, record: RoundRecord) -> Script:
        there = yield from self._of_this_job(ROUND_KEY, job)
        if there is not None:
            if there.value.ahead_of(record):
                raise Stale
            if there.value == record:
                return None
            now = self._informers.kernel.now
            if replace(there.value, waiting_message=record.waiting_message) == record:
                left = self._waiting_at + WAITING_SECONDS - now
                if left > 0:
                    return left
            self._waiting_at = now
        put = yield from self._put(ROUND_KEY, record, there)
        self._informers.expects("leases", put.version)
        return None

    def _of_this_job(self, key: Key, job: Job) -> Script:
        """What is there for this job, or None; another job's is removed."""
        informers = self._informers
        there = informers.cache.items.get(key)
        if there is None or there.value.job_uid == job.uid:
            return there
        yield from informers.send(lambda: informers.api.remove(key, there.uid))
        informers.forget(key, there.uid)
        return None

    def _put(self, key: Key, value: MemberList | RoundRecord, there: Item | None) -> Script:
        informers = self._informers
        if there is None:
            put = yield from informers.send(lambda: informers.api.create(key, value))
        else:
            put = yield from informers.send(lambda: informers.api.put(key, value, version=there.version))
        informers.cache.answered(key, put, informers.kernel.now)
        return put

    def _or_stale(self, write: Script) -> Script:
        """What is not as the cache has it is read again."""
        try:
            return (yield from write)
        except (Conflict, NotFound) as error:
            raise Stale from error


class PodWriter:
    """``PodWriter``: pods, their Leases, and the job when it may go. ``told`` hears who goes and why."""

    def __init__(
        self,
        informers: Informers,
        delete_pod: Callable[[str, str], Item | None],
        delete_job: Callable[[str], None],
        told: Callable[[str], None],
    ) -> None:
        self._informers = informers
        self._delete_pod = delete_pod
        self._delete_job = delete_job
        self._told = told
        self.group = ""
        """The PodGroup of new pods."""

    def write(self, job: Job, action: Action) -> Script:
        """Carry it out. Raises Unavailable, Refused."""
        informers = self._informers
        if isinstance(action, CreatePod):
            name = action.name
            uid = f"{job.uid}-{informers.kernel.rng.getrandbits(32):08x}"
            pod = Pod(name, uid, slot=action.slot, attempt=action.attempt, avoids=action.avoid)
            pod = replace(pod, group=self.group)
            if job.spec.drain_seconds:
                pod = replace(pod, drain_seconds=HOOK_SECONDS, replace_seconds=HOOK_REPLACE_SECONDS)
            try:
                made = yield from informers.send(lambda: informers.api.create(("pod", name), pod, uid))
                informers.cache.answered(("pod", name), made, informers.kernel.now)
                informers.expects("pods", made.version)
            except Conflict:
                informers.news()
        elif isinstance(action, DeletePod):
            self._told(f"{informers.name} deletes {action.name}: {action.why}")
            try:
                left = yield from informers.send(lambda: self._delete_pod(action.name, action.uid))
                if left is not None:
                    informers.cache.answered(("pod", action.name), left, informers.kernel.now)
                else:
                    informers.forget(("pod", action.name), action.uid)
            except (NotFound, Conflict):
                informers.forget(("pod", action.name), action.uid)
        elif isinstance(action, PatchPod):
            yield from self._label(action)  # no pod that is played has the gate for members
        elif isinstance(action, DeleteJob):
            self._told(f"{informers.name} deletes the job: {action.why}")
            with contextlib.suppress(NotFound, Conflict):
                yield from informers.send(lambda: self._delete_job(job.uid))
        else:
            seen = informers.cache.items.get(("lease", action.name))
            if seen is None:
                return
            with contextlib.suppress(NotFound, Conflict):
                yield from informers.send(lambda: informers.api.remove(("lease", action.name), seen.uid))
            informers.forget(("lease", action.name), seen.uid)

    def _label(self, action: PatchPod) -> Script:
        """The patch of labels, with a test of the UID."""
        informers = self._informers

        def patch() -> Item:
            there = informers.api.get(("pod", action.name))
            if there.uid != action.uid:
                raise NotFound(action.name)
            labels = {**dict(there.value.labels), **dict(action.labels)}
            kept = tuple((key, value) for key, value in labels.items() if value is not None)
            return informers.api.put(("pod", action.name), replace(there.value, labels=kept), there.uid)

        with contextlib.suppress(NotFound, Conflict):
            put = yield from informers.send(patch)
            informers.cache.answered(("pod", action.name), put, informers.kernel.now)


def _list_ahead(there: MemberList, job: Job, number: int) -> bool:
    return there.job_uid == job.uid and there.number > number
