"""The shell around the planner, against a real API server, with a planner of a few lines in its place.

What is tested is what the shell promises whatever the planner decides: the order of writes, resumption
after a crash between any two of them, conflicts, that the round Lease never goes back, who may do what.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from devcluster.access import ClusterAccess
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.contract.names import JOB_LABEL, PARTICIPANT_ANNOTATION, ROUND_ANNOTATION, pod_name
from elasticjob.contract.records import ParticipantRecord, RoundRecord
from elasticjob.rounds.waits import RoundWait, WaitKey
from elasticjob_operator.act.injection import HANDLER_DIR
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.observe.client import APPLY_PATCH, MERGE_PATCH, Client, Json
from elasticjob_operator.observe.credentials import Credentials
from elasticjob_operator.observe.errors import (
    ApiError,
    Forbidden,
    Gone,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from elasticjob_operator.plan.model import CreatePod, DeletePod, Event, Job, Now, Observed, Plan
from elasticjob_operator.plan.status import JobStatus, ParticipantStatus, RoundStatus
from elasticjob_operator.settings import Settings
from tests import operator_account

pytestmark = pytest.mark.cluster

CRD = Path(__file__).parents[2] / "crds" / "elasticjobs.elasticjob.dev.yaml"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
DEADLINE = 60.0
ACCOUNT = "OPERATORS_KUBECONFIG"

Actions = tuple[CreatePod | DeletePod, ...]


@pytest.fixture(scope="module")
def api_server(cluster: ClusterAccess) -> ClusterAccess:
    """The session's cluster with the resource installed."""
    cluster.apply(CRD)
    wait_for(
        lambda: cluster.kubectl("get", "elasticjobs", check=False).returncode == 0,
        DEADLINE,
        "elasticjobs are served",
    )
    return cluster


@pytest.fixture(scope="module")
def account(api_server: ClusterAccess) -> Path:
    """A kubeconfig with the operator's rights."""
    return operator_account.config(api_server)


@pytest.fixture(autouse=True)
def kubeconfig(api_server: ClusterAccess, account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is an administrator; its operators are not."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.setenv(ACCOUNT, str(account))


FIRST = WaitKey(RoundWait.LAST_CALL)


class StubPlanner:
    """Wants round ``number`` in ``phase``, and whatever ``actions`` says."""

    def __init__(self) -> None:
        self.number = 0
        self.phase = "Broken"
        self.message = ""
        self.waiting = ""
        self.events: tuple[Event, ...] = ()
        self.actions: Callable[[Job, Observed], Actions] = lambda _job, _observed: ()
        self.given_up: Callable[[Observed], tuple[str, ...]] = lambda _observed: ()
        self.pod_names: tuple[str, ...] = ()
        self.participants: tuple[ParticipantStatus, ...] = ()
        self.seen: list[Observed] = []
        self.seen_at: list[float] = []
        self.timers: list[Mapping[WaitKey, float]] = []

    def __call__(
        self, job: Job, status: JobStatus, observed: Observed, now: Now, timers: Mapping[WaitKey, float]
    ) -> Plan:
        self.seen.append(observed)
        self.seen_at.append(time.monotonic())
        self.timers.append(timers)
        number = max(self.number, status.round.number)
        if observed.record is not None and observed.record.number > number:
            number = observed.record.number + 1
        given_up = self.given_up(observed)
        message = f"given up: {', '.join(given_up)}" if given_up else self.message
        wanted = RoundStatus(number=number, phase=self.phase, message=message)
        if self.phase == "Active":
            wanted = replace(wanted, nonce=f"n{number}", leader="mnist-0-0", leader_endpoint="10.0.0.1:1")
        after = replace(status, round=wanted, participants=self.participants)
        return Plan(
            status=after,
            record=project(job, after, self.waiting),
            pod_names=self.pod_names,
            actions=self.actions(job, observed),
            events=self.events,
            timers={FIRST: now.mono, **timers},
            given_up=given_up,
        )


def project(job: Job, status: JobStatus, waiting: str = "") -> RoundRecord:
    active = status.round.phase == "Active"
    return RoundRecord(
        job_uid=job.uid,
        number=status.round.number,
        phase=status.round.phase,
        nonce=status.round.nonce,
        members=("abcd",) if active else (),
        leader=status.round.leader_endpoint,
        message=status.round.message,
        waiting=waiting,
    )


class Killed(BaseException):
    """The process ended here."""


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

    async def delete(self, path: str, uid: str | None = None, grace: int | None = None) -> Json:
        await self.wire.before("DELETE", path)
        return await super().delete(path, uid, grace)


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

    def round(self) -> RoundStatus:
        return next(iter(self.controller.registry)).view.status.round

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
            text = status.get("round", {}).get("message", "")
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


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not await condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE:.0f} s: {what}"
        await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def check() -> bool:
        return condition()

    await eventually(check, what)


def play(namespace: str, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = Scene(namespace)
        try:
            await scenario(scene)
        finally:
            await scene.admin.aclose()

    asyncio.run(main())


def create_missing(job: Job, observed: Observed, attempts: tuple[int, ...] = (0, 0)) -> Actions:
    there = {p.name for p in observed.pods}
    wanted = [CreatePod(slot, attempt) for slot, attempt in enumerate(attempts)]
    return tuple(a for a in wanted if pod_name(job.name, a.slot, a.attempt) not in there)


def test_writes_come_in_the_order_of_the_protocol(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
        scene.planner.actions = create_missing
        scene.planner.number = 1
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.pods_are("mnist-0-0", "mnist-1-0")
            await asyncio.sleep(0.3)
            writes = list(scene.wire.writes)
            assert writes[0] == "PATCH elasticjobs/mnist/status"
            owned = ("serviceaccounts", "roles", "rolebindings", "networkpolicies")
            assert set(writes[1:6]) == {*(f"POST {kind}" for kind in owned), "POST leases"}
            assert writes[6:] == ["POST pods", "POST pods"], "each pod was made once"
            # A pass without news writes nothing.
            passes = operator.controller.passes
            await scene.poke()
            await until(lambda: operator.controller.passes > passes, "one more pass")
            await asyncio.sleep(0.1)
            assert scene.wire.writes == writes
        assert JobStatus.parse((await scene.job())["status"]).round.number == 1

    play(namespace, scenario)


@pytest.mark.parametrize("kill_at", ["PATCH elasticjobs", "POST leases", "POST roles", "POST pods"])
def test_an_operator_that_dies_between_two_writes_resumes(namespace: str, kill_at: str) -> None:
    async def scenario(scene: Scene) -> None:
        scene.planner.number = 3
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
        scene.planner.actions = create_missing
        await scene.make_job()
        scene.wire.kill_at = kill_at
        async with scene.operator():
            await asyncio.wait_for(scene.wire.killed.wait(), DEADLINE)
        if kill_at == "POST leases":
            assert JobStatus.parse((await scene.job())["status"]).round.number == 3, "the status came first"
            assert await scene.record() is None
        scene.wire.kill_at = ""
        scene.planner.number = 0  # all that the next operator knows is in the API server
        if kill_at == "PATCH elasticjobs":
            scene.planner.number = 3
        async with scene.operator():
            await scene.round_is(3, "Broken")
            await scene.pods_are("mnist-0-0", "mnist-1-0")

    play(namespace, scenario)


def test_a_conflict_is_read_again_and_planned_again(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            await operator.pause_feed()
            await scene.poke()  # which the operator does not hear of
            scene.planner.number = 1
            operator.controller.enqueue(scene.namespace, "mnist")
            await scene.round_is(1, "Broken")
        job = await scene.job()
        assert "poked" in job["metadata"]["annotations"]
        assert JobStatus.parse(job["status"]).round.number == 1

    play(namespace, scenario)


def test_the_round_lease_never_goes_back(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        job = await scene.make_job()
        numbers: list[int] = []
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            await operator.pause_feed()
            ahead = RoundRecord(job_uid=job["metadata"]["uid"], number=9, phase="Broken")
            change = {"metadata": {"annotations": {ROUND_ANNOTATION: ahead.dump()}}}
            await scene.admin.patch(f"{scene.leases}/mnist-round", change, MERGE_PATCH)
            deadline = time.monotonic() + DEADLINE
            while not numbers or numbers[-1] != 10:
                record = await scene.record()
                assert record is not None
                numbers.append(record.number)
                assert time.monotonic() < deadline, numbers
                await asyncio.sleep(0.005)
        assert numbers == sorted(numbers), "it was never below what it had been"
        assert set(numbers) <= {9, 10}
        assert any(o.record is not None and o.record.number == 9 for o in scene.planner.seen)

    play(namespace, scenario)


def test_a_stale_status_is_noticed_by_the_lease(namespace: str) -> None:
    """Status and Lease of another operator arrive over two watches, the Lease first."""

    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            await operator.pause_feed()
            job = await scene.job()
            # Before the writes: the operator may plan the moment that it sees the Lease.
            passes = len(scene.planner.seen)
            scene.planner.message = "by another operator"
            status = JobStatus(round=RoundStatus(number=5, phase="Broken", message="by another operator"))
            await scene.admin.patch(
                job_path(scene.namespace, "mnist") + "/status", {"status": status.dump()}, MERGE_PATCH
            )
            record = RoundRecord(
                job_uid=job["metadata"]["uid"], number=5, phase="Broken", message="by another operator"
            )
            change = {"metadata": {"annotations": {ROUND_ANNOTATION: record.dump()}}}
            await scene.admin.patch(f"{scene.leases}/mnist-round", change, MERGE_PATCH)
            await until(lambda: len(scene.planner.seen) >= passes + 2, "planned again on what was read")
            await asyncio.sleep(0.2)
            assert await scene.record() == record

    play(namespace, scenario)


def test_pods_and_leases_are_listed_anew_after_a_status_of_somebody_else(namespace: str) -> None:
    """A predecessor's last words must not be judged by Leases that are older than they."""

    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            world = operator.controller.world
            listed: list[str] = []
            read_again = world.read_again

            async def counted(job: Job) -> None:
                listed.append(job.name)
                await read_again(job)

            world.read_again = counted  # type: ignore[method-assign]
            scene.planner.message = "our own words"
            await scene.poke()
            await until(lambda: scene.planner.message == operator.round().message, "")
            assert not listed, "what we have written ourselves tells nothing new"
            await scene.announce("mnist-0-0", "abcdefgh")
            status = JobStatus(round=RoundStatus(number=3, phase="Broken", message="a predecessor's words"))
            await scene.admin.patch(
                job_path(scene.namespace, "mnist") + "/status", {"status": status.dump()}, MERGE_PATCH
            )
            await until(lambda: listed == ["mnist"], "pods and Leases are listed anew, once")
            await until(lambda: "mnist-0-0" in scene.planner.seen[-1].leases, "the Lease is seen")

    play(namespace, scenario)


def test_leases_are_listed_before_anybody_is_given_up(namespace: str) -> None:
    """A proxy may answer on for an API server that is dead: a watch by it brings nothing, and looks well."""

    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            for informer in operator.controller.world.informers():
                informer._take = lambda _batch: None  # type: ignore[assignment, method-assign]
            await scene.announce("mnist-0-0", "abcdefgh")
            awaited = ["mnist-0-0"]
            scene.planner.given_up = lambda seen: tuple(pod for pod in awaited if pod not in seen.leases)
            scene.planner.message = "nobody"
            passes, before = operator.controller.passes, len(scene.planner.seen)
            await scene.poke()
            await until(lambda: operator.controller.passes > passes, "another pass")
            await scene.message_is("nobody")
            assert "mnist-0-0" not in scene.planner.seen[before].leases, "first by what the watch has brought"
            assert "mnist-0-0" in scene.planner.seen[-1].leases
            awaited.append("mnist-1-0")
            await scene.poke()
            await scene.message_is("given up: mnist-1-0")

    play(namespace, scenario)


def test_a_job_made_anew_under_its_name_starts_from_nothing(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        scene.planner.number = 7
        scene.planner.actions = create_missing
        first = await scene.make_job()
        async with scene.operator():
            await scene.round_is(7, "Broken")
        # Nobody collects: the Lease is kept from going with its owner, as when the collector is slow.
        orphan = {"metadata": {"ownerReferences": None}}
        await scene.admin.patch(f"{scene.leases}/mnist-round", orphan, MERGE_PATCH)
        await scene.admin.delete(job_path(scene.namespace, "mnist"))

        async def gone() -> bool:
            try:
                await scene.job()
            except NotFound:
                return True
            return False

        await eventually(gone, "the first job is gone")
        second = await scene.make_job()
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        scene.planner.number = 1
        scene.planner.seen.clear()
        async with scene.operator():
            await scene.round_is(1, "Broken")
        record = await scene.record()
        assert record is not None
        assert record.job_uid == second["metadata"]["uid"]
        assert scene.planner.seen[0].record is None, "the former job's record is not this job's"

    play(namespace, scenario)


def test_a_name_that_is_taken_is_shown_to_the_planner(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        stranger = {
            "metadata": {"name": "mnist-0-0"},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }
        await scene.admin.create(scene.pods, stranger)
        taken: list[bool] = []

        def actions(job: Job, observed: Observed) -> Actions:
            others = [p.name for p in observed.pods if not p.mine]
            taken.append("mnist-0-0" in others)
            return create_missing(job, observed, (1, 0) if "mnist-0-0" in others else (0, 0))

        scene.planner.actions = actions
        async with scene.operator():

            async def made() -> bool:
                return {"mnist-0-1", "mnist-1-0"} <= await scene.pod_names()

            await eventually(made, "the pod has taken the next attempt number")
        assert any(taken)

    play(namespace, scenario)


def test_a_pod_that_is_there_when_the_status_is_written_is_not_made_again(namespace: str) -> None:
    """A pass waits no longer than a second for a slow write. The next one is planned without the pods, and
    when it comes to make them, they are there."""

    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
        scene.planner.actions = create_missing
        pods, status = asyncio.Event(), asyncio.Event()
        scene.wire.held["POST pods"] = pods
        async with scene.operator() as operator:
            await until(lambda: scene.wire.writes.count("POST pods") == 2, "the pods are being made")
            await until(lambda: not operator.controller.under_way(), "the pass has left them behind")
            scene.wire.held["PATCH elasticjobs"] = status
            scene.planner.number, before = 1, len(scene.wire.writes)
            await scene.poke()
            await until(lambda: len(scene.wire.writes) > before, "the status is being written")
            assert not scene.planner.seen[-1].pods
            pods.set()
            await until(lambda: len(operator.controller.world.pods) == 2, "the pods are there")
            status.set()
            await scene.round_is(1, "Broken")
            await until(
                lambda: len(scene.planner.seen[-1].pods) == 2 and not operator.controller.under_way(),
                "the planner has seen them",
            )
        assert scene.wire.writes.count("POST pods") == 2

    play(namespace, scenario)


def test_a_write_that_fails_slowly_makes_no_passes_while_it_is_under_way(namespace: str) -> None:
    """It has failed before, so it was due when it began; its next pause begins when it has failed again."""

    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
        scene.planner.actions = create_missing
        scene.wire.fail_at = "POST pods"
        async with scene.operator() as operator:
            await until(lambda: scene.wire.failed > 0, "the webhook is down")
            scene.wire.held["POST pods"] = asyncio.Event()
            scene.wire.fail_at, before = "", len(scene.wire.writes)
            await until(lambda: "POST pods" in scene.wire.writes[before:], "it does not answer")
            await until(lambda: not operator.controller.under_way(), "the pass has left it behind")
            passes = operator.controller.passes
            await asyncio.sleep(2)
            assert operator.controller.passes - passes < 10

    play(namespace, scenario)


def test_pods_are_deleted_by_uid(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        scene.planner.actions = create_missing
        async with scene.operator() as operator:
            await scene.pods_are("mnist-0-0", "mnist-1-0")
            await until(lambda: len(operator.controller.world.pods) == 2, "both pods are known")
            uids = {p.name: p.uid for p in operator.controller.world.pods.all()}

            def actions(_job: Job, observed: Observed) -> Actions:
                there = {p.name for p in observed.pods if not p.deleting}
                wrong = DeletePod("mnist-1-0", "not-its-uid", "a former pod of that name")
                right = DeletePod("mnist-0-0", uids["mnist-0-0"], "test", force=True)
                return (wrong, right) if "mnist-0-0" in there else (wrong,)

            scene.planner.actions = actions
            await scene.poke()
            await scene.pods_are("mnist-1-0")

    play(namespace, scenario)


def test_a_pod_that_no_kubelet_ends_goes_with_force_only(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job(nodeName="a-node-that-is-not-there")
        scene.planner.actions = create_missing
        force = False

        def actions(_job: Job, observed: Observed) -> Actions:
            return tuple(
                DeletePod(pod.name, pod.uid, "test", force=force)
                for pod in observed.pods
                if force or not pod.deleting
            )

        async def there() -> list[Json]:
            items: list[Json] = (await scene.admin.get(scene.pods))["items"]
            return items

        async with scene.operator():
            await scene.pods_are("mnist-0-0", "mnist-1-0")
            scene.planner.actions = actions
            await scene.poke()
            await scene.pods_are()
            stuck = await there()
            assert {p["metadata"]["deletionGracePeriodSeconds"] for p in stuck} == {35}, (
                "Terminating, for ever"
            )
            assert len(stuck) == 2
            force = True
            await scene.poke()

            async def gone() -> bool:
                return not await there()

            await eventually(gone, "the objects are gone")

    play(namespace, scenario)


def test_a_pods_identity_may_do_two_things(namespace: str, api_server: ClusterAccess) -> None:
    async def scenario(scene: Scene) -> None:
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
        scene.planner.actions = create_missing
        await scene.make_job()
        async with scene.operator():
            await scene.pods_are("mnist-0-0", "mnist-1-0")
        pod = await scene.admin.get(f"{scene.pods}/mnist-0-0")
        assert pod["spec"]["serviceAccountName"] == "mnist-elasticjob"

    play(namespace, scenario)

    def may(verb: str, resource: str) -> bool:
        user = f"system:serviceaccount:{namespace}:mnist-elasticjob"
        answer = api_server.kubectl(
            "auth", "can-i", verb, resource, "-n", namespace, "--as", user, check=False
        )
        return answer.stdout.strip() == "yes"

    wait_for(lambda: may("watch", "leases/mnist-round"), DEADLINE, "RBAC knows of the Role")
    allowed = {("get", "leases/mnist-round"), ("list", "leases/mnist-round"), ("watch", "leases/mnist-round")}
    allowed |= {("get", "leases/mnist.members-round")}
    for name in ("mnist-0-0", "mnist-1-0"):
        allowed |= {(verb, f"leases/{name}") for verb in ("get", "create", "patch")}
    resources = ["mnist-round", "mnist.members-round", "mnist-0-0", "mnist-1-0", "mnist-0-1", "other"]
    for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
        for name in resources:
            assert may(verb, f"leases/{name}") == ((verb, f"leases/{name}") in allowed), (verb, name)
    for denied in [("list", "leases"), ("get", "pods"), ("get", "secrets"), ("patch", "elasticjobs/mnist")]:
        assert not may(*denied), denied


def test_pods_of_others_get_access_by_their_own_account(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job(template=False)
        pod = {
            "metadata": {"name": "theirs", "labels": {JOB_LABEL: "mnist"}},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }
        await scene.admin.create(scene.pods, pod)
        scene.planner.pod_names = ("theirs",)
        async with scene.operator():

            async def bound() -> bool:
                path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}/rolebindings"
                page = await scene.admin.get(path)
                return [b["subjects"][0]["name"] for b in page["items"]] == ["default"]

            await eventually(bound, "the Role is bound to the pods' account")
        accounts = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/serviceaccounts")
        assert [a["metadata"]["name"] for a in accounts["items"]] == ["default"]

    play(namespace, scenario)


def test_a_name_less_in_the_role_holds_nothing_up(namespace: str) -> None:
    """A lost pod's name leaves the Role with the next name that comes, or after a while."""

    async def scenario(scene: Scene) -> None:
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
        await scene.make_job()
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}/roles/mnist-elasticjob"

        async def names() -> list[str]:
            role = await scene.admin.get(path)
            return [
                name for rule in role["rules"] if "create" in rule["verbs"] for name in rule["resourceNames"]
            ]

        async with scene.operator() as operator:

            async def granted() -> bool:
                return "POST roles" in scene.wire.writes

            await eventually(granted, "the Role")
            writes = scene.wire.writes.count("PATCH roles/mnist-elasticjob")
            passes = operator.controller.passes
            scene.planner.pod_names = ("mnist-0-0",)
            await scene.poke()
            await until(lambda: operator.controller.passes > passes, "a pass without one name")
            scene.planner.pod_names = ("mnist-0-0", "mnist-1-1")
            await scene.poke()

            async def replaced() -> bool:
                return await names() == ["mnist-0-0", "mnist-1-1"]

            await eventually(replaced, "the replacement's name in place of the lost pod's")
            assert scene.wire.writes.count("PATCH roles/mnist-elasticjob") == writes + 1
            scene.planner.pod_names = ("mnist-0-0",)
            await scene.poke()

            async def removed() -> bool:
                return await names() == ["mnist-0-0"]

            await eventually(removed, "the name is gone without any further event")

    play(namespace, scenario)


def test_rights_that_somebody_has_deleted_are_written_when_members_do_not_come_back(namespace: str) -> None:
    """They can't: with the Role gone they neither read the round nor write that they have joined. The next
    look at all jobs' Roles is minutes away, and after rejoinTimeoutSeconds their pods would be deleted."""

    async def scenario(scene: Scene) -> None:
        scene.planner.number, scene.planner.phase = 1, "Active"
        scene.planner.pod_names = ("mnist-0-0",)
        scene.planner.participants = (ParticipantStatus("abcd", "mnist-0-0", "uid-0", "Member", rank=0),)
        await scene.make_job()
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scene.namespace}"

        async def there(kind: str = "roles") -> bool:
            with contextlib.suppress(NotFound):
                return bool(await scene.admin.get(f"{rbac}/{kind}/mnist-elasticjob"))
            return False

        async with scene.operator() as operator:
            await eventually(lambda: there("rolebindings"), "what is written after the Role")
            await scene.admin.delete(f"{rbac}/roles/mnist-elasticjob")
            passes = operator.controller.passes
            await scene.poke()
            await until(lambda: operator.controller.passes > passes, "a pass while the round runs")
            assert not await there()
            scene.planner.phase = "Broken"
            await scene.poke()
            await eventually(there, "the Role again")

    play(namespace, scenario)


def test_events_are_counted_up(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        scene.planner.events = (Event("RoundBroken", "pod x was lost", warning=True),)
        async with scene.operator() as operator:
            for _ in range(3):
                passes = operator.controller.passes
                await scene.poke()
                await until(lambda before=passes: operator.controller.passes > before, "one more pass")  # type: ignore[misc]

            async def counted() -> bool:
                page = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/events")
                ours = [e for e in page["items"] if e["reason"] == "RoundBroken"]
                assert len(ours) <= 1
                return bool(ours) and ours[0]["count"] >= 3 and ours[0]["type"] == "Warning"

            await eventually(counted, "one Event with a count")

    play(namespace, scenario)


def test_the_waiting_sentence_is_written_rarely_and_a_phase_at_once(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            for sentence in ("one", "two", "three"):
                passes = operator.controller.passes
                scene.planner.waiting = sentence
                operator.controller.enqueue(scene.namespace, "mnist")
                await until(lambda: operator.controller.passes > passes, "one more pass")  # noqa: B023
            record = await scene.record()
            assert record is not None
            assert record.waiting == "one"
            scene.planner.number = 1
            operator.controller.enqueue(scene.namespace, "mnist")
            await scene.round_is(1, "Broken")
            record = await scene.record()
            assert record is not None
            assert record.waiting == "three"

    play(namespace, scenario)


def test_timers_are_kept_and_start_again_after_a_gap(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            await until(lambda: operator.controller.world.trusted(scene.namespace), "the watches are there")
            for _ in range(2):
                passes = operator.controller.passes
                operator.controller.enqueue(scene.namespace, "mnist")
                await until(lambda: operator.controller.passes > passes, "one more pass")  # noqa: B023
            assert scene.planner.timers[-1], "timers come back"
            for informer in operator.controller.world.informers():
                informer.stalled()
            count = len(scene.planner.timers)
            operator.controller.enqueue(scene.namespace, "mnist")
            await until(lambda: len(scene.planner.timers) > count, "one more pass")
            assert scene.planner.timers[-1] == {}

    play(namespace, scenario)


def test_errors_back_off_whatever_happens_meanwhile(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            await until(lambda: operator.controller.world.trusted(scene.namespace), "the watches are there")
            scene.wire.fail_at = "PATCH elasticjobs"
            scene.planner.number = 1
            began = time.monotonic()
            while time.monotonic() < began + 2.0:
                operator.controller.enqueue(scene.namespace, "mnist")
                await asyncio.sleep(0.01)
            # After 0, 0.2, 0.6, 1.4 s, and then at most once a second as long as there is news.
            assert 3 <= scene.wire.failed <= 7
            assert scene.planner.timers[-1], "what waits for its time goes on waiting"
            scene.wire.fail_at = ""
            await scene.round_is(1, "Broken")

    play(namespace, scenario)


def test_a_pod_that_is_refused_holds_up_nothing_else(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        body = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "mnist"},
            "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "main"}]}}},
        }
        await scene.admin.create(job_path(scene.namespace, "").rstrip("/"), body)
        scene.planner.actions = create_missing
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            for number in range(1, 6):
                scene.planner.number = number
                operator.controller.enqueue(scene.namespace, "mnist")
                await scene.round_is(number, "Broken")
            assert scene.wire.writes.count("POST pods") <= 4

            async def told(reason: str = "PodRefused", word: str = "image") -> bool:
                page = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/events")
                return any(word in e["message"] for e in page["items"] if e["reason"] == reason)

            await eventually(told, "an Event says why")
            await eventually(
                lambda: told("PythonPathReplaced", HANDLER_DIR),
                "and another what a container without command loses",
            )

    play(namespace, scenario)


@pytest.mark.parametrize("error", [Unavailable, Forbidden, TooManyRequests], ids=["500", "403", "429"])
@pytest.mark.parametrize(
    "write",
    [
        "POST pods",
        "DELETE pods",
        "PATCH roles",
        "PATCH serviceaccounts",
        "PATCH rolebindings",
        "PATCH networkpolicies",
        "PATCH leases/mnist-round",
    ],
)
def test_a_write_that_fails_holds_up_nothing_but_itself(
    namespace: str, write: str, error: type[ApiError]
) -> None:
    """The status goes on, so do the round (unless it is what fails), the other pods and all timers."""

    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        scene.planner.actions = create_missing
        scene.planner.pod_names = ("mnist-0-0", "mnist-1-0")
        async with scene.operator() as operator:
            await scene.pods_are("mnist-0-0", "mnist-1-0")
            await until(lambda: operator.controller.world.trusted(scene.namespace), "the watches are there")

            def under_way() -> bool:
                operator.controller.enqueue(scene.namespace, "mnist")
                return len(scene.planner.seen[-1].pods) == 2 and bool(scene.planner.timers[-1])

            await until(under_way, "timers run")
            entry = operator.controller.registry.get(scene.namespace, "mnist")
            assert entry is not None
            memory = entry.memory
            memory.access = memory.network_policy = None
            doomed = scene.planner.seen[-1].pods[0]
            scene.planner.actions = lambda _job, observed: (
                CreatePod(7, 0),
                *(DeletePod(pod.name, pod.uid, "test") for pod in observed.pods if pod.uid == doomed.uid),
            )
            scene.planner.pod_names = ("mnist-0-0", "mnist-1-0", "mnist-7-0")
            scene.wire.error, scene.wire.fail_at = error, write
            first = scene.planner.timers[-1][FIRST]
            for number in (1, 2, 3):
                scene.planner.number = number
                operator.controller.enqueue(scene.namespace, "mnist")
                await until(lambda: operator.round().number == number, "the status")  # noqa: B023
                if write != "PATCH leases/mnist-round":
                    await scene.round_is(number, "Broken")
            await until(lambda: any("etcd" in t.why for t in scene.planner.seen[-1].troubles), "it is told")
            assert scene.wire.failed <= 6
            assert scene.planner.timers[-1][FIRST] == first, "no timer starts again"
            others = {"POST pods", "DELETE pods"} - {write}
            if write in ("PATCH roles", "PATCH serviceaccounts", "PATCH rolebindings"):
                others -= {"POST pods"}  # it could not write its Lease
                assert "mnist-7-0" not in await scene.pod_names()
            for other in others:
                await until(lambda: any(w.startswith(other) for w in scene.wire.writes), other)  # noqa: B023
            scene.wire.fail_at = ""
            await until(lambda: not scene.planner.seen[-1].troubles, "nothing is told any more")
            await scene.round_is(3, "Broken")

    play(namespace, scenario)


def test_the_list_finds_what_the_watch_missed(namespace: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            await operator.pause_feed()
            await scene.admin.delete(job_path(scene.namespace, "mnist"))
            await operator.controller.source.relist(scene.namespace)
            assert len(operator.controller.registry) == 0
            made = await scene.make_job()
            await operator.controller.source.relist(scene.namespace)

            async def served() -> bool:
                record = await scene.record()
                return record is not None and record.job_uid == made["metadata"]["uid"]

            await eventually(served, "the job that nobody told of is served")
            policy = (
                f"/apis/networking.k8s.io/v1/namespaces/{scene.namespace}/networkpolicies/mnist-elasticjob"
            )

            async def there() -> bool:
                try:
                    return bool(await scene.admin.get(policy))
                except NotFound:
                    return False

            await eventually(there, "its policy is there")
            await scene.admin.delete(policy)
            await operator.controller.source.relist(scene.namespace)
            await eventually(there, "the policy that somebody deleted is there again")

    play(namespace, scenario)


def test_whoever_missed_a_jobs_end_learns_it_when_its_lease_goes(namespace: str) -> None:
    """Made for a job that is gone, the garbage collector takes it, a hundred times a second."""

    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            await operator.pause_feed()
            await scene.admin.delete(f"{scene.leases}/mnist-round")
            await until(lambda: scene.wire.writes.count("POST leases") == 2, "it is made again for a job")
            await scene.admin.delete(job_path(scene.namespace, "mnist"))
            with contextlib.suppress(NotFound):  # the garbage collector may have been first
                await scene.admin.delete(f"{scene.leases}/mnist-round")
            await until(lambda: not len(operator.controller.registry), "the operator has forgotten the job")
            assert scene.wire.writes.count("POST leases") == 2

    play(namespace, scenario)


def test_a_list_does_not_bring_back_a_job_that_went_while_it_was_under_way(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        async with scene.operator() as operator:
            await scene.round_is(0, "Broken")
            get = operator.client.get

            async def slow(path: str, params: Mapping[str, str] | None = None) -> Json:
                page = await get(path, params)
                if path.endswith("/elasticjobs"):
                    assert page["items"]
                    await scene.admin.delete(job_path(scene.namespace, "mnist"))
                    await until(lambda: not len(operator.controller.registry), "the watch has told of it")
                return page

            monkeypatch.setattr(operator.client, "get", slow)
            await operator.controller.source.relist(scene.namespace)
            assert len(operator.controller.registry) == 0

    play(namespace, scenario)


@pytest.mark.devcluster
def test_the_informer_survives_the_api_server(namespace: str, devcluster: Cluster) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.make_job()
        scene.planner.actions = create_missing
        async with scene.operator() as operator:
            world = operator.controller.world
            await scene.pods_are("mnist-0-0", "mnist-1-0")
            scene.planner.actions = lambda _job, _observed: ()
            second = await asyncio.to_thread(devcluster.second_apiserver)
            apiserver = devcluster.component("apiserver")
            await asyncio.to_thread(apiserver.stop)
            command = [
                "--kubeconfig",
                str(second.kubeconfig),
                "delete",
                "pod",
                "mnist-0-0",
                "-n",
                scene.namespace,
            ]
            await asyncio.to_thread(devcluster.kubectl, *command, "--force", "--grace-period=0")
            assert not world.trusted(scene.namespace)
            await asyncio.to_thread(apiserver.start)
            await asyncio.to_thread(second.stop)
            await until(lambda: world.pods.get(scene.namespace, "mnist-0-0") is None, "the deletion is known")
            await until(lambda: world.trusted(scene.namespace), "the watches are back")
            await scene.announce("mnist-1-0", "efgh")
            await until(lambda: "mnist-1-0" in scene.planner.seen[-1].leases, "events arrive again")
            scene.planner.number = 4
            await scene.poke()
            await scene.round_is(4, "Broken")

    play(namespace, scenario)


STUBBED = """
import sys
sys.path.insert(0, {tests!r})
import functools
from elasticjob_operator import __main__, app
from elasticjob_operator.controller.controller import Controller
from tests.integration.test_operator_shell import StubPlanner, create_missing
planner = StubPlanner()
planner.number, planner.actions = 2, create_missing
app.Controller = functools.partial(Controller, plan=planner)
sys.argv = ["operator", *{arguments!r}]
__main__.main()
"""


def test_the_process_writes_nothing_of_its_own_and_ends_on_sigterm(namespace: str, tmp_path: Path) -> None:
    log = tmp_path / "operator.log"
    script = STUBBED.format(tests=str(Path(__file__).parents[2]), arguments=["-n", namespace, "--verbose"])
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:

        async def scenario(scene: Scene) -> None:
            job = await scene.make_job()
            await scene.round_is(2, "Broken")
            after = await scene.job()
            for meta in (job["metadata"], after["metadata"]):
                del meta["resourceVersion"], meta["managedFields"]
            assert after["metadata"] == job["metadata"], "nothing was written into the user's object"
            await scene.admin.delete(job_path(scene.namespace, "mnist"))
            second = await scene.make_job()

            async def anew() -> bool:
                record = await scene.record()
                return record is not None and record.job_uid == second["metadata"]["uid"]

            await eventually(anew, "the job made anew is served")

        play(namespace, scenario)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        # Else it waits 5 s for what has not ended by itself.
        assert "Hung tasks stopping is skipped: no tasks given." in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        print(log.read_text())
