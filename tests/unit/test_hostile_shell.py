"""The operator's shell among hostile objects: no watch goes blind, and one job's trouble is its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticjob.contract.names import JOB_LABEL, PARTICIPANT_ANNOTATION
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.rounds.waits import WaitKey
from elasticjob_operator.act.job_state import JobState
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import WatchBatch
from elasticjob_operator.observe.errors import Invalid, NotFound, error_of
from elasticjob_operator.observe.informer import Informer
from elasticjob_operator.observe.objects import read_node
from elasticjob_operator.observe.seen_lease import SeenLease, read_lease
from elasticjob_operator.observe.seen_pod import SeenPod, read_pod
from elasticjob_operator.observe.spec import MalformedJob, read_job
from elasticjob_operator.observe.store import Store
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import Job, Now, Observed, Plan
from elasticjob_operator.plan.state.status import JobStatus
from elasticjob_operator.settings import Settings
from tests.unit import hostile

SEVERAL = settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
UTF8_ESCAPES = hostile.ESCAPES.replace("\ud800", "")
"""What is logged as it is; pytest can't hand on a captured log that is no UTF-8."""
KEYS = st.sampled_from(
    """
    labels annotations ownerReferences uid controller nodeName containers name phase podIPs ip
    conditions type status reason message containerStatuses state terminated exitCode waiting taints key
    holderIdentity elasticjob.dev/job-name elasticjob.dev/slot elasticjob.dev/attempt
    elasticjob.dev/avoid-nodes resourceVersion deletionTimestamp elasticjob.dev/participant
    elasticjob.dev/round elasticjob.dev/progress
    """.split()  # noqa: SIM905
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8) | st.just(hostile.ESCAPES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from([read_pod, read_lease, read_node]), anything, anything, anything)
@SEVERAL
def test_an_object_of_any_shape_is_slimmed(
    read: Callable[[Json], Any], meta: Any, spec: Any, status: Any
) -> None:
    """The API server keeps to its types; reading does not depend on it."""
    read({"metadata": meta, "spec": spec, "status": status})


STATUS_KEYS = st.sampled_from(
    """
    conditions type status reason message round number phase nonce members participants id pod uid state
    rounds cause startTime accounts name charges time attempts observedGeneration ignored progress step
    """.split()  # noqa: SIM905
)
statuses = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "x", "0001-01-01T00:00:00+23:59", "9999-12-31"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STATUS_KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(STATUS_KEYS, statuses, max_size=6), anything)
@SEVERAL
def test_a_job_of_any_shape_is_read_or_said_to_be_malformed(status: Any, spec: Any) -> None:
    meta = {"namespace": "default", "name": "mnist", "uid": "uid", "generation": 1, "resourceVersion": "1"}
    try:
        view = read_job({"metadata": meta, "spec": spec, "status": status})
    except MalformedJob:
        return
    assert status_json.dump(view.status) is not None


def raw_pod(name: str, version: int, **more: Any) -> Json:
    meta = {"namespace": "default", "name": name, "uid": name, "resourceVersion": str(version)}
    return {
        "metadata": {**meta, "labels": {JOB_LABEL: "mnist"}},
        "spec": {},
        "status": {"phase": "Running"},
        **more,
    }


async def test_an_object_that_cannot_be_read_makes_nobody_blind() -> None:
    def read(raw: Mapping[str, Any], old: SeenPod | None) -> SeenPod:
        if raw.get("poison"):
            raise ValueError("poison")
        return read_pod(raw, old)

    class OneWatch:
        lists = 0

        async def get(self, _path: str, _query: Mapping[str, str]) -> Json:
            self.lists += 1
            items = [raw_pod("a", 1), raw_pod("b", 2, poison=True), raw_pod("c", 3)]
            return {"metadata": {"resourceVersion": "3"}, "items": items}

        async def watch(self, _path: str, _query: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
            yield [("MODIFIED", raw_pod("a", 4, poison=True)), ("ADDED", raw_pod("d", 5))]
            await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    api = OneWatch()
    store: Store[SeenPod] = Store(lambda _item: None, loop.time)
    informer = Informer(api, "/pods", read, store, loop.time)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    while store.get("default", "d") is None:
        await asyncio.sleep(0.01)
    assert {item.name for item in store.all()} == {"a", "c", "d"}, "a is as it was known"
    assert api.lists == 1
    assert informer.good_since is not None
    task.cancel()


def test_a_million_joins_of_one_pod_leave_nothing_behind() -> None:
    """Memory: one Lease is one entry whatever it said before (50,000 joins, the same 20 times over)."""
    news: list[str] = []
    store: Store[SeenLease] = Store(lambda item: news.append(item.name), lambda: 0.0)
    sizes = set()
    status, timers, state = JobStatus(attempts=(0,)), dict[WaitKey, float](), JobState()
    for version in range(1, 50_001):
        record = ParticipantRecord(f"id-{version}", "Joining", "10.0.0.1:80").dump()
        raw = {
            "metadata": {
                "namespace": "default",
                "name": "mnist-0-0",
                "uid": "lease",
                "resourceVersion": str(version),
                "labels": {JOB_LABEL: "mnist"},
                "annotations": {PARTICIPANT_ANNOTATION: record},
            },
            "spec": {"holderIdentity": "mnist-0-0"},
        }
        store.put(read_lease(raw, store.get("default", "mnist-0-0")))
        if version % 2500 == 0:
            job = Job("default", "mnist", "uid", 1, read_job(JOB).job.spec)
            lease = store.of_job("default", "mnist")["mnist-0-0"].participant
            pod = read_pod(raw_pod("mnist-0-0", version)).pod
            world = Observed(pods=(pod,), leases={"mnist-0-0": lease})
            decided = plan(job, status, world, Now(NOW, version, str(version)), timers)
            status, timers = decided.status, dict(decided.timers)
            sizes.add((len(store), len(timers) < 20, len(json.dumps(status_json.dump(status))) < 12_000))
    assert sizes == {(1, True, True)}
    assert len(news) == 50_000
    assert not state.events.sent


def test_a_hundred_thousand_leases_that_claim_a_job_are_taken_away_piece_by_piece() -> None:
    lease = read_lease({"metadata": {"name": "x"}, "spec": {"holderIdentity": "nobody"}}).participant
    world = Observed(leases={f"claims-{i}": lease for i in range(100_000)})
    status, timers, actions = JobStatus(), dict[WaitKey, float](), 0
    for second in (0, 11):
        decided = plan(read_job(JOB).job, status, world, Now(NOW, second, "n"), timers)
        status, timers = decided.status, dict(decided.timers)
        actions = sum(type(action).__name__ == "DeleteLease" for action in decided.actions)
        assert len(timers) < 300
        assert len(json.dumps(status_json.dump(status))) < 5_000
    assert actions == 200


def test_what_the_api_server_says_is_printable() -> None:
    body = json.dumps({"message": f"pods {UTF8_ESCAPES} is forbidden"}).encode()
    error = error_of("POST /pods", 403, {}, body)
    assert str(error).isprintable()
    assert error.message.isprintable()
    assert error_of("GET /x", 500, {}, b"[" * 200_000).message.isprintable()


NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB: Json = {
    "metadata": {
        "namespace": "default",
        "name": "mnist",
        "uid": "uid-mnist",
        "generation": 1,
        "resourceVersion": "1",
    },
    "spec": {"replicas": 1},
}


class ManyJobs:
    """An API with nothing in it but the jobs whose statuses are written; it keeps what was said as Events."""

    def __init__(self) -> None:
        self.write_outages = WriteOutages()
        self.events: list[Json] = []
        self.patched: list[str] = []
        self.version = 100

    async def get(self, path: str, _query: Mapping[str, str] | None = None) -> Json:
        collection, _, name = path.rpartition("/")
        if name == "elasticjobs":
            return {"metadata": {"resourceVersion": "0"}, "items": []}
        if collection.endswith("/elasticjobs"):
            return a_job(name, self.version)
        if collection.endswith("/leases"):
            raise NotFound(f"GET {path}", 404, "NotFound", name)
        return {"metadata": {"resourceVersion": str(self.version)}, "items": []}

    async def create(self, path: str, body: Json) -> Json:
        if path.endswith("/events"):
            self.events.append(body)
        self.version += 1
        return {"metadata": {**body["metadata"], "resourceVersion": str(self.version), "uid": "u"}}

    async def patch(self, path: str, _body: object, *_: Any, **__: Any) -> Json:
        self.patched.append(path)
        if "elasticjobs/refused" in path:
            raise Invalid(f"PATCH {path}", 422, "Invalid", f"status: {UTF8_ESCAPES}: must be less")
        self.version += 1
        return {"metadata": {"resourceVersion": str(self.version), "name": "x", "namespace": "default"}}

    async def delete(self, *_: Any) -> Json:
        return {}

    async def watch(self, *_: Any) -> AsyncGenerator[WatchBatch, None]:
        yield []
        await asyncio.Event().wait()


def a_job(name: str, version: int = 1, **status: Any) -> Json:
    meta = {**JOB["metadata"], "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {**JOB, "metadata": meta, "status": status}


@asynccontextmanager
async def working() -> AsyncIterator[tuple[ManyJobs, Controller]]:
    def planner(job: Job, *rest: Any) -> Plan:
        if job.name == "raises":
            raise OverflowError(UTF8_ESCAPES)
        return plan(job, *rest)

    api = ManyJobs()
    controller = Controller(api, Settings(), planner)  # type: ignore[arg-type]
    controller.start()
    try:
        yield api, controller
    finally:
        await controller.aclose()


async def test_a_job_whose_pass_raises_or_is_refused_says_so_and_hurts_no_other() -> None:
    async with working() as (api, controller):
        for name in ("raises", "refused", "well", "unreadable"):
            controller.source.changed(a_job(name))
        while len({e["reason"] + e["involvedObject"]["name"] for e in api.events}) < 2:
            await asyncio.sleep(0.01)
        controller.source.changed(a_job("unreadable", 10_000, accounts=5))
        controller.source.changed(a_job("well", 10_000, replicas=5))
        api.version = 10_001
        while "StatusUnreadable" not in {e["reason"] for e in api.events}:
            await asyncio.sleep(0.01)
        seen = api.patched.count("/apis/elasticjob.dev/v1alpha1/namespaces/default/elasticjobs/well/status")
        assert seen >= 1
        told = [(e["reason"], e["involvedObject"]["name"]) for e in api.events if e["type"] == "Warning"]
        assert sorted(told) == [
            ("ReconcileFailed", "raises"),
            ("StatusUnreadable", "unreadable"),
            ("WriteFailed", "refused"),
        ], "each once"
        for event in api.events:
            assert event["message"].isprintable()

        def well() -> bool:
            by_name = {entry.view.job.name: entry.view for entry in controller.registry}
            return by_name["well"].status.condition("Training") is not None

        while not well():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "odd",
    [{"currentRound": {"number": []}}, {"accounts": 5}, {"conditions": [{"type": []}]}, {"attempts": "x"}],
)
async def test_a_status_that_nobody_can_read_stops_no_list_of_jobs(odd: Json) -> None:
    async with working() as (api, controller):
        controller.source.changed(a_job("odd", 1, **odd))
        controller.source.changed(a_job("well"))
        assert [entry.request.name for entry in controller.registry] == ["well"]
        del api
