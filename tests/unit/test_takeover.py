"""What it costs to take over, and to compare with the list of jobs now and then: few requests, however many
jobs there are, and nothing for those that have ended."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import pytest

from elasticjob.contract.names import ATTEMPT_LABEL, JOB_LABEL, SLOT_LABEL
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.controller.reconciler import Planner
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import WatchBatch
from elasticjob_operator.observe.errors import Gone, NotFound
from elasticjob_operator.observe.lists import PAGE, read_list
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.planner import plan
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import Job, JobSpec, Now, Observed
from elasticjob_operator.plan.state.status import JobStatus
from elasticjob_operator.settings import Settings

JOBS = "/apis/elasticjob.dev/v1alpha1/elasticjobs"
PODS = "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/leases"
OWNED = {
    "serviceaccounts": "/api/v1/serviceaccounts",
    "roles": "/apis/rbac.authorization.k8s.io/v1/roles",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "networkpolicies": "/apis/networking.k8s.io/v1/networkpolicies",
}
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
TEMPLATE: Json = {"spec": {"containers": [{"name": "main", "image": "none"}]}}


class Cluster:
    """Collections that are served in pages; ``gone`` says how often a page that continues one is refused."""

    write_outages = WriteOutages()

    def __init__(self) -> None:
        self.items: dict[str, list[Json]] = {path: [] for path in (JOBS, PODS, LEASES, *OWNED.values())}
        self.version = 1_000
        self.gone = 0
        self.asked: Counter[str] = Counter()
        self.largest = 0

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        await asyncio.sleep(0)
        query: dict[str, str] = dict(params or {})
        if path not in self.items:
            self.asked[f"GET {path}"] += 1
            return {"metadata": {"resourceVersion": str(self.version)}, "items": []}
        self.asked[f"LIST {path}"] += not query.get("continue")
        start = int(query.get("continue", "0"))
        if start and self.gone:
            self.gone -= 1
            self.items[path].pop(0)  # what has changed meanwhile
            raise Gone(f"GET {path}", 410, "Expired", "the provided continue parameter is too old")
        limit = int(query.get("limit", "1000000"))
        page = self.items[path][start : start + limit]
        self.largest = max(self.largest, len(page))
        more = start + limit < len(self.items[path])
        meta = {"resourceVersion": str(self.version), "continue": str(start + limit) if more else ""}
        return {"metadata": meta, "items": page}

    async def create(self, path: str, body: Json) -> Json:
        if path.rpartition("/")[2] in OWNED:
            self.items[OWNED[path.rpartition("/")[2]]].append(body)
        return self._written("POST", path, body["metadata"])

    async def patch(self, path: str, _body: object, *_: Any, **__: Any) -> Json:
        namespace, rest = path.partition("/namespaces/")[2].split("/", 1)
        kind, name = rest.split("/")[:2]
        if kind in OWNED and not any(one["metadata"]["name"] == name for one in self.items[OWNED[kind]]):
            raise NotFound(f"PATCH {path}", 404, "NotFound", name)
        return self._written("PATCH", path, {"namespace": namespace, "name": name})

    async def delete(self, path: str, *_: Any) -> Json:
        return self._written("DELETE", path, {})

    async def watch(self, *_: Any) -> AsyncGenerator[WatchBatch, None]:
        yield []
        await asyncio.Event().wait()

    def _written(self, method: str, path: str, meta: Json) -> Json:
        kind = next(part for part in reversed(path.split("/")) if part.endswith("s") and "-" not in part)
        self.asked[f"{method} {kind}"] += 1
        self.version += 1
        return {"metadata": {**meta, "uid": "u", "resourceVersion": str(self.version)}}

    def job(self, name: str, **status: Any) -> Json:
        meta = {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "5",
        }
        raw = {"metadata": meta, "spec": {"replicas": 1, "template": TEMPLATE}, "status": status}
        self.items[JOBS].append(raw)
        return raw

    def pod(self, job: str, slot: int) -> None:
        labels = {JOB_LABEL: job, SLOT_LABEL: str(slot), ATTEMPT_LABEL: "0"}
        owner = {"kind": "ElasticJob", "name": job, "uid": f"uid-{job}", "controller": True}
        meta = {
            "namespace": "ns",
            "name": f"{job}-{slot}-0",
            "uid": f"uid-{job}-{slot}",
            "resourceVersion": "6",
            "labels": labels,
            "ownerReferences": [owner],
        }
        self.items[PODS].append({"metadata": meta, "spec": {}, "status": {"phase": "Pending"}})


def status_of(name: str, finished: bool) -> Json:
    """What an operator has written of a job that it has seen once, or that has ended."""
    job = Job("ns", name, f"uid-{name}", 1, JobSpec(template=TEMPLATE))
    before = JobStatus()
    if finished:
        over = {
            "conditions": [
                {"type": kind, "status": "True" if kind == "Complete" else "False", "reason": "Complete"}
                | {"message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("Training", "Suspended", "Complete", "Failed")
            ],
            "currentRound": {"number": 3, "phase": "Closed"},
            "terminalState": "Complete",
            "internal": {"minReaderVersion": 1, "attempts": [0]},
        }
        before = status_json.parse(over)
    return status_json.dump(plan(job, before, Observed(), Now(NOW, 0.0, "n"), {}).status)


def take_over(
    cluster: Cluster, then: Callable[[Controller], Awaitable[None]], planner: Planner = plan
) -> None:
    async def main() -> None:
        controller = Controller(cluster, Settings(), planner)  # type: ignore[arg-type]
        controller.start(leading=False)
        try:
            await controller.cache.synced()
            cluster.asked.clear()
            await controller.lead()
            await quiet(controller)
            await then(controller)
        finally:
            await controller.aclose()

    asyncio.run(asyncio.wait_for(main(), 30))


async def quiet(controller: Controller) -> None:
    passes = -1
    while passes != controller.passes or controller.under_way():
        passes = controller.passes
        await asyncio.sleep(0.1)


def test_a_takeover_reads_lists_and_nothing_for_one_job() -> None:
    cluster = Cluster()
    for number in range(30):
        name = f"job{number}"
        cluster.job(name, **status_of(name, finished=number % 2 == 0))
        cluster.pod(name, 0)

    async def then(_: Controller) -> None:
        reads = {what: times for what, times in cluster.asked.items() if what.startswith(("GET", "LIST"))}
        assert reads == {f"LIST {path}": 1 for path in (JOBS, PODS, LEASES, *OWNED.values())}

    take_over(cluster, then)


def test_what_jobs_own_is_written_once_and_mended_where_it_has_changed() -> None:
    cluster = Cluster()
    for number in range(10):
        name = f"job{number}"
        cluster.job(name, **status_of(name, finished=False))
        cluster.pod(name, 0)

    def writes() -> dict[str, int]:
        return {
            what: times for what, times in cluster.asked.items() if what.partition(" ")[2] in OWNED and times
        }

    async def first(_: Controller) -> None:
        assert writes() == {f"POST {kind}": 10 for kind in OWNED}

    async def second(controller: Controller) -> None:
        assert writes() == {}, "a successor finds all as it would write it"
        cluster.items[OWNED["networkpolicies"]].pop(0)
        cluster.items[OWNED["roles"]][1]["rules"][0]["verbs"].append("delete")
        cluster.items[OWNED["rolebindings"]].pop(2)
        object.__setattr__(controller.settings, "relist_seconds", 0.1)
        await controller.source.relist("")
        await quiet(controller)
        mended = {"POST networkpolicies": 1, "PATCH roles": 1, "PATCH serviceaccounts": 1}
        assert writes() == {**mended, "PATCH rolebindings": 1, "POST rolebindings": 1}

    take_over(cluster, first)
    take_over(cluster, second)


def test_jobs_that_have_ended_cost_nothing_at_a_takeover_or_a_relist() -> None:
    cluster = Cluster()
    for number in range(10):
        cluster.job(f"job{number}", **status_of(f"job{number}", finished=True))

    async def then(controller: Controller) -> None:
        await asyncio.sleep(0.3)
        settled = {what for what in cluster.asked if not what.startswith("LIST")}
        passes = controller.passes
        cluster.asked.clear()
        object.__setattr__(controller.settings, "relist_seconds", 0.1)
        await controller.source.relist("")
        while controller.passes < passes + 10:
            await asyncio.sleep(0.01)
        await quiet(controller)
        assert dict(cluster.asked) == {f"LIST {JOBS}": 1}
        assert settled == {"POST leases"}, "their round Leases were not there"

    take_over(cluster, then)


def training(cluster: Cluster, name: str, lost: bool) -> None:
    """A job of one member, whose pod has ended meanwhile, or has not."""
    cluster.pod(name, 0)
    pod = cluster.items[PODS][-1]
    if lost:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    member = {"id": "m", "podName": f"{name}-0-0", "podUID": f"uid-{name}-0", "state": "Member"}
    over = {
        "currentRound": {"number": 1, "phase": "Active", "members": 1},
        "participants": [{**member, "groupRank": 0, "slot": 0}],
        "internal": {"minReaderVersion": 1, "attempts": [0]},
    }
    cluster.job(name, **over)


def test_jobs_that_have_lost_a_member_meanwhile_come_first() -> None:
    cluster = Cluster()
    cluster.job("ended", **status_of("ended", finished=True))
    for number in range(20):
        training(cluster, f"trains{number}", lost=False)
    cluster.job("waits", **status_of("waits", finished=False))
    training(cluster, "lost", lost=True)
    order: list[str] = []
    listed: list[bool] = []

    def look(job: Job, *rest: Any, **more: Any) -> Any:
        order.append(job.name)
        listed.append(any(f"LIST {path}" in cluster.asked for path in OWNED.values()))
        return plan(job, *rest, **more)

    async def then(_: Controller) -> None:
        first = list(dict.fromkeys(order))
        assert first[:2] == ["lost", "waits"]
        assert first[-1] == "ended"
        assert not listed[0], "what jobs own can wait"
        assert all(listed[order.index("waits") :])

    take_over(cluster, then, look)


async def test_five_thousand_pods_come_in_pages_and_let_others_have_their_turn() -> None:
    cluster = Cluster()
    for number in range(5_000):
        cluster.pod("job", number)
    late = [0.0]

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            late.append(time.monotonic() - before)

    taken: list[str] = []

    beating = asyncio.create_task(beat())
    present, _ = await read_list(cluster, PODS, lambda raw: taken.append(raw["metadata"]["name"]))  # type: ignore[arg-type]
    beating.cancel()
    assert len(present) == 5_000
    assert len(taken) == 5_000
    assert cluster.largest == PAGE
    assert len(late) > 5_000 / 50, "others had as many turns"


@pytest.mark.parametrize("times", [1, 2])
def test_a_list_that_can_not_be_continued_begins_anew(times: int) -> None:
    """What has gone meanwhile is not in it: the pages of a list are of one version."""
    cluster = Cluster()
    for number in range(2 * PAGE):
        cluster.pod("job", number)
    cluster.gone = times
    present, _ = asyncio.run(read_list(cluster, PODS, lambda _: None))  # type: ignore[arg-type]
    assert ("ns", "job-0-0") not in present
    assert len(present) == 2 * PAGE - times


def test_a_list_that_can_never_be_continued_is_an_error() -> None:
    cluster = Cluster()
    for number in range(2 * PAGE):
        cluster.pod("job", number)
    cluster.gone = 100
    with pytest.raises(Gone):
        asyncio.run(read_list(cluster, PODS, lambda _: None))  # type: ignore[arg-type]


def test_plans_that_are_costly_leave_the_cpu_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """News of a job of thousands comes faster than one of its plans is made."""
    cluster = Cluster()
    cluster.job("large")
    clock = itertools.count(0.0, 0.1)

    async def news(controller: Controller) -> None:
        monkeypatch.setattr(time, "thread_time", lambda: next(clock))  # so long each plan seems to take
        before, began = controller.passes, time.monotonic()
        while time.monotonic() - began < 2.0:
            controller.enqueue("ns", "large")
            await asyncio.sleep(0.01)
        passes, seconds = controller.passes - before, time.monotonic() - began
        assert 2 <= passes <= 2 + seconds / 0.2

    take_over(cluster, news)
