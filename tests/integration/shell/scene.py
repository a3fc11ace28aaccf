"""The words of these tests: one job, operators to run on it, and what they say to the API server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from elasticjob.contract.names import JOB_LABEL, PARTICIPANT_ANNOTATION, ROUND_ANNOTATION
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.round_record import RoundRecord
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.write_backoff import MAX_BACKOFF_SECONDS
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import MERGE_PATCH, Client
from elasticjob_operator.observe.credentials import Credentials
from elasticjob_operator.observe.errors import ApiError, Gone, NotFound, Unavailable
from elasticjob_operator.plan.state.status import RoundStatus
from elasticjob_operator.settings import Settings
from tests.integration.shell.stub import StubPlanner

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
DEADLINE = 60.0
ACCOUNT = "OPERATORS_KUBECONFIG"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass
class Wire:
    """What passes between operator and API server. ``kill_at`` ends the operator before such a write;
    ``fail_at`` answers it with ``error``; ``held`` lets it wait until the event is set."""

    writes: list[str] = field(default_factory=list)
    kill_at: str = ""
    fail_at: str = ""
    error: type[ApiError] = Unavailable
    failed: int = 0
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    held: dict[str, asyncio.Event] = field(default_factory=dict)

    async def before(self, method: str, path: str) -> None:
        if path.rstrip("/").split("/")[-1] == "events" or "/events/" in path:
            return
        name = f"{method} {'/'.join(path.split('/namespaces/')[-1].split('/')[1:])}"
        if self.kill_at and name.startswith(self.kill_at):
            self.killed.set()
            await asyncio.Event().wait()  # never returns: the test cancels what is left
        if self.fail_at and name.startswith(self.fail_at):
            self.failed += 1
            raise self.error(name, 503, "", "etcd has no leader")
        self.writes.append(name)
        for start, event in list(self.held.items()):
            if name.startswith(start):
                await event.wait()


class WiredClient(Client):
    """The real client, observed."""

    wire: Wire

    async def create(self, path: str, body: Json) -> Json:
        await self.wire.before("POST", path)
        return await super().create(path, body)

    async def patch(
        self,
        path: str,
        body: object,
        content_type: str,
        params: Mapping[str, str] | None = None,
        accept: str | None = None,
    ) -> Json:
        await self.wire.before("PATCH", path)
        return await super().patch(path, body, content_type, params, accept)

    async def delete(
        self, path: str, uid: str | None = None, grace: int | None = None, version: int | None = None
    ) -> Json:
        await self.wire.before("DELETE", path)
        return await super().delete(path, uid, grace, version)


class Operator:
    """A controller in the test's own loop; the feed stands for kopf."""

    def __init__(self, namespace: str, planner: StubPlanner, wire: Wire) -> None:
        self.namespace = namespace
        self.planner = planner
        self.wire = wire
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", os.environ[ACCOUNT])
            self.client = WiredClient(Credentials())
        self.client.wire = wire
        self.controller = Controller(self.client, Settings(namespaces=(namespace,)), planner)
        self._feed: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.controller.start()
        self.resume_feed()

    async def pause_feed(self) -> None:
        assert self._feed is not None
        self._feed.cancel()
        await asyncio.gather(self._feed, return_exceptions=True)

    def resume_feed(self) -> None:
        self._feed = asyncio.get_running_loop().create_task(self._watch_jobs())

    @asynccontextmanager
    async def one_more_pass(self) -> AsyncIterator[None]:
        before = self.controller.passes
        yield
        await until(lambda: self.controller.passes > before, "one more pass")

    def enqueue(self) -> None:
        self.controller.enqueue(self.namespace, "mnist")

    def round(self) -> RoundStatus:
        return next(iter(self.controller.registry)).view.status.current_round

    async def stop(self) -> None:
        await self.pause_feed()
        await self.controller.aclose()
        await self.client.aclose()

    async def _watch_jobs(self) -> None:
        path = job_path(self.namespace, "").rstrip("/")
        while True:
            try:
                page = await self.client.get(path)
                for raw in page["items"]:
                    self.controller.source.changed(raw)
                query = {"resourceVersion": page["metadata"]["resourceVersion"]}
                async for batch in self.client.watch(path, query):
                    for kind, raw in batch:
                        if kind == "DELETED":
                            self.controller.source.deleted(raw)
                        elif kind != "BOOKMARK":
                            self.controller.source.changed(raw)
            except (ApiError, Gone):
                await asyncio.sleep(0.2)


class Scene:
    """One namespace, one job named mnist, and operators to run on it."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.planner = StubPlanner()
        self.wire = Wire()
        self.admin = Client(Credentials())
        self.leases = LEASES.format(namespace)
        self.pods = f"/api/v1/namespaces/{namespace}/pods"

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        operator = Operator(self.namespace, self.planner, self.wire)
        operator.start()
        try:
            yield operator
        finally:
            await operator.stop()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Operator]:
        """An operator that knows the job; no round has been formed."""
        await self.make_job()
        async with self.operator() as operator:
            await self.round_is(0, "Broken")
            yield operator

    async def make_job(self, template: bool = True, **pod: str) -> Json:
        spec: Json = {"replicas": 2, "handlerSource": "Image"}
        if template:
            spec["template"] = {"spec": {"containers": [{"name": "main", "image": "none"}], **pod}}
        meta = {"name": "mnist", "namespace": self.namespace}
        body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": meta, "spec": spec}
        return await self.admin.create(job_path(self.namespace, "").rstrip("/"), body)

    async def job(self) -> Json:
        return await self.admin.get(job_path(self.namespace, "mnist"))

    async def record(self) -> RoundRecord | None:
        try:
            lease = await self.admin.get(f"{self.leases}/mnist-round")
        except NotFound:
            return None
        return RoundRecord.parse(lease["metadata"]["annotations"][ROUND_ANNOTATION])

    async def pod_names(self) -> set[str]:
        page = await self.admin.get(self.pods)
        return {p["metadata"]["name"] for p in page["items"] if "deletionTimestamp" not in p["metadata"]}

    async def pods_are(self, *names: str) -> None:
        async def done() -> bool:
            return await self.pod_names() == set(names)

        await eventually(done, f"the pods are {', '.join(names)}")

    async def round_is(self, number: int, phase: str) -> None:
        async def done() -> bool:
            record = await self.record()
            return record is not None and (record.number, record.phase) == (number, phase)

        await eventually(done, f"the round Lease says {number} {phase}")

    async def poke(self) -> None:
        """Change something about the job, so that a pass is due."""
        stamp = {"metadata": {"annotations": {"poked": str(time.monotonic())}}}
        await self.admin.patch(job_path(self.namespace, "mnist"), stamp, MERGE_PATCH)

    async def message_is(self, message: str) -> None:
        """Wait until the status says so; it says nothing else before, but for what it does now."""
        path = job_path(self.namespace, "mnist")
        said: list[str] = []

        async def is_there() -> bool:
            status = (await self.admin.get(path)).get("status", {})  # none before there is something to say
            text = status.get("currentRound", {}).get("message", "")
            said.append(text) if text not in said else None
            return bool(text == message)

        await eventually(is_there, message)
        assert len(said) <= 2, said

    async def announce(self, pod: str, record_id: str) -> None:
        """What a participant does."""
        seen = await self.record()
        record = ParticipantRecord(
            id=record_id,
            state="Joining",
            endpoint="10.0.0.1:1",
            seen_job_uid=seen.job_uid if seen else "",
            seen_round=seen.number if seen else 0,
        ).dump()
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": pod,
                "labels": {JOB_LABEL: "mnist"},
                "annotations": {PARTICIPANT_ANNOTATION: record},
            },
            "spec": {"holderIdentity": f"uid-{pod}"},
        }
        query = {"fieldManager": "participant", "force": "true"}
        await self.admin.patch(f"{self.leases}/{pod}", body, APPLY_PATCH, query)


def most_tries(seconds: float, first: float = 1.0, longest: float = MAX_BACKOFF_SECONDS) -> int:
    """How often a write that always fails may be tried within so many seconds, however often it is planned:
    its pauses double, and jitter takes a quarter of each at most."""
    tries, pause = 1, first
    while seconds >= 0.75 * pause:
        tries, seconds, pause = tries + 1, seconds - 0.75 * pause, min(2 * pause, longest)
    return tries


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not await condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE:.0f} s: {what}"
        await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def check() -> bool:
        return condition()

    await eventually(check, what)
