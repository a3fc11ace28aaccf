"""Nodes and participants of many jobs, played by one event loop.

A pod that appears runs at once (its status is written as kubelet does), and its participant announces itself,
renews its Lease as the round record says, and follows the rounds by the handler's own decisions
(`elasticjob.core.participant`). The leader of a round reports it established; workers take no time.

What differs from a cluster: one user for all, in system:masters, so that priority and fairness leaves them
alone; few connections, and requests wait for a free one in the order in which they were due, renewals too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.api_client import ApiClient, Refused
from benchmarks.k8s import killed, running
from benchmarks.own_lease import MERGE, OwnLease
from elasticjob.contract import names
from elasticjob.contract.endpoint import format_endpoint
from elasticjob.contract.fields import RecordError
from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import AnnounceAgain, Enter, Participant

AGENT = "elasticjob-jobs"
_SLIM = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_WATCH_SECONDS = 7200
_PAUSE_SECONDS = 0.2

Key = tuple[str, str]


class Seat:
    """A pod and the participant in it."""

    def __init__(self, nodes: Nodes, job: SeenJob, name: str, uid: str) -> None:
        self._nodes, self._job = nodes, job
        self.name, self.uid = name, uid
        self.announced_at = 0.0
        """When the API server had its last announcement (monotonic)."""
        self._core = Participant()
        self._wanted = asyncio.Event()
        self._annotations: dict[str, str] = {}
        self._lease = OwnLease(job.namespace, job.name, name, uid)
        self._renew = 5.0
        self._in_round = self._announces = False
        self.task = asyncio.ensure_future(self._live())

    @property
    def member(self) -> bool:
        """Whether it is in a round."""
        return self._in_round

    async def lose(self) -> float:
        """Its container is killed, and its kubelet says so. Returns the moment before that (monotonic)."""
        self.task.cancel()
        self._job.seats.pop(self.uid, None)
        began = time.monotonic()
        path = f"/api/v1/namespaces/{self._job.namespace}/pods/{self.name}/status"
        await self._nodes.persist("lose", "PATCH", path, {"status": killed()}, MERGE)
        return began

    async def _live(self) -> None:
        path = f"/api/v1/namespaces/{self._job.namespace}/pods/{self.name}/status"
        await self._nodes.persist(
            "run", "PATCH", path, {"status": running(next(self._nodes.addresses))}, MERGE
        )
        if self._job.record is not None:
            self._core.observe(self._job.record)
        self._announce()
        self.step()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._renew * random.uniform(0.9, 1.1)):
                    await self._wanted.wait()
            wanted = self._wanted.is_set()
            self._wanted.clear()
            await self._write("say" if wanted else "renew")

    def observe(self, record: RoundRecord) -> None:
        """The watch has brought the round Lease."""
        if self._core.observe(record):
            self.step()

    def step(self) -> None:
        """Do what the handler would now."""
        if self._in_round and self._core.end_reason():
            self._announce()
        if self._in_round:
            return
        step = self._core.take_action()
        if isinstance(step, AnnounceAgain):
            self._nodes.counts["announced again"] += 1
            self._announce()
        elif isinstance(step, Enter):
            self._in_round = True
            leads = step.membership.group_rank == 0
            self._renew = LEADER_RENEW_SECONDS if leads else MEMBER_RENEW_SECONDS
            if leads:
                self._request_write(
                    names.REPORT_ANNOTATION, RoundReport(step.membership.nonce, established=True).dump()
                )
        elif self._core.latest is not None:
            self._renew = float(self._core.latest.wait_renew_period_seconds)

    def _announce(self) -> None:
        self._in_round = False
        self._announces = True
        endpoint = format_endpoint("127.0.0.1", random.randint(20_000, 60_000))
        record = self._core.announce(secrets.token_urlsafe(8), endpoint, False, 1)
        self._request_write(names.PARTICIPANT_ANNOTATION, record.dump())

    def _request_write(self, annotation: str, text: str) -> None:
        self._annotations[annotation] = text
        self._wanted.set()

    async def _write(self, what: str) -> None:
        announces, self._announces = self._announces, False
        answer = await self._nodes.persist(what, "PATCH", *self._lease.write(self._annotations))
        if answer is None:
            # Another client has written the Lease, or it is gone: it is taken over, as the handler does.
            self._lease.version, self._announces = "", self._announces or announces
            await asyncio.sleep(_PAUSE_SECONDS)
            self._wanted.set()
            return
        if announces:
            self.announced_at = time.monotonic()
        self._lease.written(answer)


class SeenJob:
    """What the watches have brought of one job."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name
        self.seats: dict[str, Seat] = {}
        self.record: RoundRecord | None = None
        self.pods: set[str] = set()
        """UIDs of all that were ever made."""
        self.began = time.monotonic()
        self.trains_after: float | None = None
        self.phases: dict[tuple[int, str], float] = {}
        """When the round Lease first had a phase (monotonic), by round and phase."""
        self.established: dict[int, float] = {}
        """When the status first called a round established, by round."""
        self.gone = False


class Nodes:
    """All nodes. `start` opens the watches, `aclose` ends everything."""

    def __init__(self, server: str, ca_file: str, token: str, connections: int) -> None:
        tls = ssl.create_default_context(cafile=ca_file)
        self._api = ApiClient(server, tls, token, AGENT, connections + 3)
        self._gate = asyncio.Semaphore(connections)
        self.addresses = iter(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(1, 1 << 24))
        self.jobs: dict[Key, SeenJob] = {}
        self.counts: Counter[str] = Counter()
        self.slowest: Counter[str] = Counter()
        """Milliseconds of requests by kind, the wait for a connection included."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Pods on their way out, by UID."""

    def start(self) -> None:
        """Watch jobs, pods and Leases."""
        label = f"labelSelector={names.JOB_LABEL.replace('/', '%2F')}&"
        followed: tuple[tuple[str, Callable[[str, Any], None]], ...] = (
            (f"/apis/{names.API_VERSION}/{names.PLURAL}?", self._job),
            (f"/api/v1/pods?{label}", self._pod),
            (f"/apis/coordination.k8s.io/v1/leases?{label}", self._lease),
        )
        self._tasks = [asyncio.ensure_future(self._follow(path, take)) for path, take in followed]

    def check(self) -> None:
        """Raise the error that has ended a watch, if there is one."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def aclose(self) -> None:
        """End at once."""
        tasks = [
            *self._tasks,
            *self._ending.values(),
            *(seat.task for job in self.jobs.values() for seat in job.seats.values()),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._api.aclose()

    def job(self, key: Key) -> SeenJob:
        """The job of that name, known from now on."""
        return self.jobs.setdefault(key, SeenJob(*key))

    async def persist(self, what: str, method: str, path: str, body: object, kind: str) -> Any:
        """Try until there is an answer that stays; None for one that says that it is no use."""
        began = time.monotonic()
        while True:
            async with self._gate:
                self.counts[what] += 1
                try:
                    answer, status = await self._api.request(method, path, body, kind, _SLIM), 200
                except Refused as refused:
                    status = refused.status
            took = round(1000 * (time.monotonic() - began))
            self.slowest[what] = max(self.slowest[what], took)
            if status == 200:
                return answer
            self.counts[f"{what}: {status}"] += 1
            if status in (404, 409, 422):
                return None
            await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.8, 1.2))

    async def _follow(self, path: str, take: Callable[[str, Any], None]) -> None:
        while True:
            # From the present state on: the API server ends a watch that cannot keep up.
            async with self._api.watch(f"{path}watch=1&timeoutSeconds={_WATCH_SECONDS}") as events:
                async for event in events:
                    if event["type"] == "ERROR":
                        self.counts["watch refused"] += 1
                        break
                    take(event["type"], event["object"])
            self.counts["watch ended"] += 1

    def _job(self, kind: str, raw: Any) -> None:
        job = self.job((raw["metadata"]["namespace"], raw["metadata"]["name"]))
        job.gone = kind == "DELETED"
        conditions = (raw.get("status") or {}).get("conditions") or ()
        round_ = (raw.get("status") or {}).get("currentRound") or {}
        if round_.get("establishedTime"):
            job.established.setdefault(int(round_["number"]), time.monotonic())
        if kind != "DELETED" and any(c["type"] == "Training" and c["status"] == "True" for c in conditions):
            job.trains_after = job.trains_after or time.monotonic() - job.began

    def _pod(self, kind: str, raw: Any) -> None:
        meta = raw["metadata"]
        job = self.job((meta["namespace"], meta["labels"][names.JOB_LABEL]))
        if kind == "ADDED" and meta["uid"] not in job.pods:
            job.pods.add(meta["uid"])
            job.seats[meta["uid"]] = Seat(self, job, meta["name"], meta["uid"])
        elif kind == "DELETED" or "deletionTimestamp" in meta:
            seat = job.seats.pop(meta["uid"], None)
            if seat is not None:
                seat.task.cancel()
            if kind != "DELETED" and meta["uid"] not in self._ending:
                self._ending[meta["uid"]] = asyncio.ensure_future(self._end(meta))

    async def _end(self, meta: Any) -> None:
        """What kubelet does with a pod that was deleted."""
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        at_once = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        await self.persist(
            "end", "DELETE", path, {**at_once, "preconditions": {"uid": meta["uid"]}}, "application/json"
        )

    def _lease(self, kind: str, raw: Any) -> None:
        meta = raw["metadata"]
        text = (meta.get("annotations") or {}).get(names.ROUND_ANNOTATION)
        if text is None or kind == "DELETED":
            return
        job = self.job((meta["namespace"], meta["labels"][names.JOB_LABEL]))
        with contextlib.suppress(RecordError):
            job.record = RoundRecord.parse(text)
            job.phases.setdefault((job.record.number, job.record.phase), time.monotonic())
            for seat in list(job.seats.values()):
                seat.observe(job.record)
