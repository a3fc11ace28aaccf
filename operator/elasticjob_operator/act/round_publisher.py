"""How a round's record reaches the pods: one small interface, and the round Lease behind it.

The record is a projection of the status that never goes back.

Participants read nothing else. So before it is written, it is compared with what is there: a Lease that
is ahead of the plan means that the plan's status was stale (status and Leases arrive over two watches).

The members of a large round are in a Lease of their own, which is written first: so the leader, which alone
reads it, finds in it the round that it has seen, or a later one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from elasticjob.contract.names import (
    JOB_LABEL,
    MEMBERS_ANNOTATION,
    ROUND_ANNOTATION,
    UNTRACKED,
    members_lease,
    round_lease,
)
from elasticjob.contract.round_record import MemberList, RoundRecord
from elasticjob_operator.act.job_state import PublishedState, Stale
from elasticjob_operator.act.owned import NotOurs, Rule
from elasticjob_operator.act.template import owner_reference
from elasticjob_operator.logs import about
from elasticjob_operator.observe.client import MERGE_PATCH, Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, NotFound
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.plan.state.model import Job

WAITING_SECONDS = 10.0
"""The sentence on what is waited for is written at most so often; each write wakes every participant."""

log = logging.getLogger(__name__)


class Published(NamedTuple):
    """What the pods of a job can read: the record of its round, None unless one of this very job is there,
    and the round whose members are listed apart, or 0."""

    record: RoundRecord | None
    member_list_round: int


class RoundPublisher(Protocol):
    """Publishes the record of a job's round. Nothing else of the operator knows where it stands."""

    def published(self, job: Job) -> Published:
        """What is published, as far as it was seen."""

    def is_there(self, job: Job, state: PublishedState) -> bool:
        """Whether there is something that a pod of the job can read."""

    @staticmethod
    def reading(job: Job) -> list[Rule]:
        """The rules of a Role that lets the job's pods read it."""

    def check(self, job: Job, record: RoundRecord, fresh: bool) -> bool:
        """Whether the record may be published. Raises Stale if what it was planned on must be read again.

        ``fresh``: job and record were read for this very pass.
        """

    async def write(
        self, job: Job, record: RoundRecord, members: MemberList | None, state: PublishedState
    ) -> float | None:
        """Publish. Returns seconds until a postponed write is due, if there is one. Raises Stale, NotOurs."""

    async def refresh(self, job: Job) -> None:
        """Read again what is published."""


class LeaseRoundPublisher:
    """Writes round Leases."""

    def __init__(self, api: Api, cache: ClusterCache, clock: Callable[[], float]) -> None:
        self._api = api
        self._cache = cache
        self._clock = clock

    def published(self, job: Job) -> Published:
        """What the Leases say."""
        there, listed = self._cache.round_lease(job), self._cache.members_lease(job)
        record = there.record if there is not None else None
        return Published(
            record if record is not None and record.job_uid == job.uid else None,
            listed.listed[1] if listed is not None and listed.listed[0] == job.uid else 0,
        )

    def is_there(self, job: Job, state: PublishedState) -> bool:
        """Whether the round Lease has been seen or made."""
        return round_lease(job.name) in state.leases_seen

    @staticmethod
    def reading(job: Job) -> list[Rule]:
        """The round Lease is watched by every pod, the member list is read by the leader, once."""
        leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
        return [
            {**leases, "resourceNames": [round_lease(job.name)], "verbs": ["get", "list", "watch"]},
            {**leases, "resourceNames": [members_lease(job.name)], "verbs": ["get"]},
        ]

    def check(self, job: Job, record: RoundRecord, fresh: bool) -> bool:
        """Whether the record may be written. Raises Stale if what it was planned on must be read again.

        ``fresh``: job and Lease were read from the API server for this very pass. A Lease that is ahead
        even then (restored, or edited by hand) is left alone until the planner has numbered above it.
        """
        listed = self._cache.members_lease(job)
        if listed is not None and not fresh and _list_ahead(listed, job, record.number):
            raise Stale(f"the member list belongs to round {listed.listed[1]}, planned was {_name(record)}")
        there = self._cache.round_lease(job)
        if there is None or there.record is None or there.record.job_uid != job.uid:
            return True
        old = there.record
        ahead = old.ahead_of(record)
        if ahead and not fresh:
            raise Stale(f"the round Lease has {_name(old)}, planned was {_name(record)}")
        if ahead:
            log.warning(
                "the round Lease is ahead of the status (%s, planned %s); leaving it alone",
                _name(old),
                _name(record),
                extra=about(job.key, round=record.number),
            )
        return not ahead

    async def write(
        self, job: Job, record: RoundRecord, members: MemberList | None, state: PublishedState
    ) -> float | None:
        """Bring the Leases up to date. Returns seconds until a postponed write is due, if there is one.

        Raises Stale when another writer has changed or removed one, and NotOurs when it is no round's.
        """
        if members is not None:
            await self._list(job, members, state)
        name = round_lease(job.name)
        there = await self._ours(job, name, self._cache.round_lease(job), state)
        if there is None:
            await self._create(job, name, ROUND_ANNOTATION, record.dump())
            state.leases_seen.add(name)
            state.waiting_at = self._clock()
            return None
        state.leases_seen.add(name)
        if there.record is not None and there.record.ahead_of(record):
            # It came over the watch after ``check``, while something else was being written.
            raise Stale(f"the round Lease has {_name(there.record)}, planned was {_name(record)}")
        text = record.dump()
        if there.texts.round == text:
            return None
        if there.record is not None and _says_the_same(there.record, record):
            left = state.waiting_at + WAITING_SECONDS - self._clock()
            if left > 0:
                return left
        state.waiting_at = self._clock()
        await self._update(job, there, ROUND_ANNOTATION, text)
        return None

    async def _list(self, job: Job, members: MemberList, state: PublishedState) -> None:
        """Let the member list be that of this round."""
        name = members_lease(job.name)
        there = await self._ours(job, name, self._cache.members_lease(job), state)
        if there is None:
            await self._create(job, name, MEMBERS_ANNOTATION, members.dump())
        elif _list_ahead(there, job, members.number):
            raise Stale(
                f"the member list belongs to round {there.listed[1]}, planned was round {members.number}"
            )
        elif there.listed != members.head:
            await self._update(job, there, MEMBERS_ANNOTATION, members.dump())
        state.leases_seen.add(name)

    async def _ours(
        self, job: Job, name: str, there: SeenLease | None, state: PublishedState
    ) -> SeenLease | None:
        """The Lease if it is this job's, None if it is to be made. One of a former job is deleted; raises
        NotOurs for one that was never a job's."""
        if there is None and name in state.leases_seen:
            # It may have gone with the job. Made again before that is known, the garbage collector would take
            # it as often as we make it.
            state.leases_seen.remove(name)
            raise Stale(f"Lease {name} was deleted")
        if there is not None and _unknown(there, job):
            raise NotOurs(job, "Lease", there.name)
        if there is not None and _foreign(there, job):
            await self._remove(there)
            return None
        return there

    async def refresh(self, job: Job) -> None:
        """Read the Leases from the API server."""
        names = [round_lease(job.name)]
        if self._cache.members_lease(job) is not None:
            names.append(members_lease(job.name))
        for name in names:
            there = self._cache.leases.get(job.namespace, name)
            try:
                self._cache.saw_lease(await self._api.get(_path(job, name)))
            except NotFound:
                if there is not None:  # and not the one that another operator has made since
                    self._cache.leases.remove(job.namespace, name, uid=there.uid)

    async def _create(self, job: Job, name: str, annotation: str, text: str) -> None:
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": job.namespace,
                "labels": {JOB_LABEL: job.name},
                "annotations": {annotation: text},
                "ownerReferences": [owner_reference(job)],
            },
            "spec": {},
        }
        try:
            self._cache.saw_lease(await self._api.create(_path(job), body))
        except AlreadyExists as error:
            if _unknown(await self._read(job, name), job):
                raise NotOurs(job, "Lease", name) from error
            raise Stale(str(error)) from error

    async def _read(self, job: Job, name: str) -> SeenLease:
        """What the watch does not bring, since it has not the label of any job."""
        try:
            return read_lease(await self._api.get(_path(job, name)))
        except NotFound as error:
            raise Stale(str(error)) from error

    async def _update(self, job: Job, there: SeenLease, annotation: str, text: str) -> None:
        meta: dict[str, Any] = {
            "uid": there.uid,
            "resourceVersion": str(there.version),
            "annotations": {annotation: text},
            **UNTRACKED,
        }
        if there.owner != job.uid:
            meta["ownerReferences"] = [owner_reference(job)]
        try:
            self._cache.saw_lease(
                await self._api.patch(_path(job, there.name), {"metadata": meta}, MERGE_PATCH)
            )
        except (Conflict, NotFound) as error:
            raise Stale(str(error)) from error

    async def _remove(self, there: SeenLease) -> None:
        """Delete the Lease of a former job of this name."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{there.namespace}/leases/{there.name}"
        try:
            await self._api.delete(path, uid=there.uid)
        except NotFound:
            pass
        except Conflict as error:
            raise Stale(str(error)) from error
        self._cache.leases.remove(there.namespace, there.name, uid=there.uid)


def _says_the_same(old: RoundRecord, new: RoundRecord) -> bool:
    """Whether they differ only in what has no effect at once: the sentence on what is waited for, and the
    pace of renewals."""
    return (
        replace(
            old, waiting_message=new.waiting_message, wait_renew_period_seconds=new.wait_renew_period_seconds
        )
        == new
    )


def _unknown(lease: SeenLease, job: Job) -> bool:
    """Whether it was never a round's: an unrelated Lease that has this name by chance."""
    ours = lease.record is not None or lease.listed[0]
    return not ours and lease.job != job.name and lease.owner != job.uid


def _foreign(lease: SeenLease, job: Job) -> bool:
    """Whether the Lease belongs to a former job of the same name."""
    if lease.record is not None:
        return lease.record.job_uid != job.uid
    if lease.listed[0]:
        return lease.listed[0] != job.uid
    return lease.owner not in ("", job.uid)


def _list_ahead(lease: SeenLease, job: Job, number: int) -> bool:
    """Whether the member list is of a later round of this job."""
    return lease.listed[0] == job.uid and lease.listed[1] > number


def _path(job: Job, name: str = "") -> str:
    base = f"/apis/coordination.k8s.io/v1/namespaces/{job.namespace}/leases"
    return f"{base}/{name}" if name else base


def _name(record: RoundRecord) -> str:
    return f"round {record.number} {record.phase}"
