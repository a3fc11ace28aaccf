"""How many requests the real planner's decisions cost at a real API server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from elasticjob.contract.names import JOB_LABEL, PARTICIPANT_ANNOTATION, REPORT_ANNOTATION
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import RoundReport
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import MERGE_PATCH
from elasticjob_operator.observe.errors import ApiError
from elasticjob_operator.plan.planner import plan
from tests.integration.shell.scene import APPLY_PATCH, Operator, Scene, WiredClient, eventually, until

pytestmark = pytest.mark.cluster

PODS = 8
BESIDE_PODS = 12
"""Requests for the start of a job, apart from one for each pod."""
BETWEEN_JOINS_SECONDS = 0.5


class CountingClient(WiredClient):
    """Counts requests by method, kind and answer. Watches are not among them."""

    counts: Counter[str]

    async def _request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, **more: Any
    ) -> Json:
        parts = path.partition("/namespaces/")[2].split("/")[1:] or [path.rpartition("/")[2]]
        what = f"{'LIST' if method == 'GET' and len(parts) == 1 else method} {parts[0]}"
        try:
            answer = await super()._request(method, path, params=params, **more)
        except ApiError as error:
            self.counts[f"{what} {error.status}"] += 1
            raise
        self.counts[what] += 1
        return answer


@asynccontextmanager
async def counting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Operator, Counter[str]]]:
    """An operator with the real planner, which has listed everything; and what it asks from then on."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(CountingClient, "counts", counts, raising=False)
    monkeypatch.setattr("tests.integration.shell.scene.WiredClient", CountingClient)
    monkeypatch.setattr(scene, "planner", plan)
    async with scene.operator() as operator:
        await until(lambda: operator.controller.queue.is_open, "the operator leads")
        counts.clear()
        yield operator, counts


async def run_pod(scene: Scene, pod: Json, number: int) -> None:
    """What the kubelet and the handler write of a pod that joins."""
    name = pod["metadata"]["name"]
    running = {
        "phase": "Running",
        "podIP": f"10.0.0.{number + 1}",
        "podIPs": [{"ip": f"10.0.0.{number + 1}"}],
    }
    await scene.admin.patch(f"{scene.pods}/{name}/status", {"status": running}, MERGE_PATCH)
    seen = await scene.record()
    assert seen is not None
    record = ParticipantRecord(f"agent{number}", "Joining", "10.0.0.1:4000", seen_job_uid=seen.job_uid)
    await write_lease(scene, pod, {PARTICIPANT_ANNOTATION: record.dump()}, "participant")


async def write_lease(scene: Scene, pod: Json, annotations: Mapping[str, str], manager: str) -> None:
    """What its handler writes."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    meta = {
        "name": name,
        "labels": {JOB_LABEL: "mnist"},
        "annotations": dict(annotations),
        "ownerReferences": [owner],
    }
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
    query = {"fieldManager": manager, "force": "true"}
    await scene.admin.patch(
        f"{scene.leases}/{name}", {**body, "spec": {"holderIdentity": uid}}, APPLY_PATCH, query
    )


async def start_job(scene: Scene) -> None:
    """A job that trains; its pods have joined one by one."""
    template = {"spec": {"containers": [{"name": "main", "image": "none"}], "schedulerName": "none"}}
    spec = {"replicas": PODS, "handlerSource": "Image", "template": template}
    meta = {"name": "mnist", "namespace": scene.namespace}
    body = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": meta, "spec": spec}
    await scene.admin.create(job_path(scene.namespace, "").rstrip("/"), body)
    names = [f"mnist-{slot}-0" for slot in range(PODS)]
    await scene.pods_are(*names)
    pods = [await scene.admin.get(f"{scene.pods}/{name}") for name in names]
    for number, pod in enumerate(pods):
        await run_pod(scene, pod, number)
        await asyncio.sleep(BETWEEN_JOINS_SECONDS)
    await scene.round_is(1, "Active")
    record = await scene.record()
    assert record is not None
    report = RoundReport(record.nonce, established=True)
    leader = next(pod for number, pod in enumerate(pods) if f"agent{number}" == record.member_ids[0])
    await write_lease(scene, leader, {REPORT_ANNOTATION: report.dump()}, "report")

    async def trains() -> bool:
        page = await scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/events")
        return any(event["reason"] == "RoundEstablished" for event in page["items"])

    await eventually(trains, "the job trains, and an Event says so")


async def quiet(operator: Operator) -> None:
    """Wait until no pass is made for a while."""
    passes = -1
    while passes != operator.controller.passes or operator.controller.under_way():
        passes = operator.controller.passes
        await asyncio.sleep(1.0)


async def test_what_a_start_a_relist_and_a_deletion_cost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counting(scene, monkeypatch) as (operator, counts):
        await start_job(scene)
        await quiet(operator)
        assert counts.pop("POST pods") == PODS
        assert counts.total() <= BESIDE_PODS, counts

        counts.clear()
        await operator.controller.source.relist(scene.namespace)
        await quiet(operator)
        kinds = ("elasticjobs", "serviceaccounts", "roles", "rolebindings", "networkpolicies")
        assert counts == {f"LIST {kind}": 1 for kind in kinds}, "nothing has changed"

        counts.clear()
        await scene.admin.delete(job_path(scene.namespace, "mnist"))
        await scene.pods_are()
        await quiet(operator)
        assert not counts, "the garbage collector takes what is left"
