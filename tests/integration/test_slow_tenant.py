"""One tenant's webhook takes its time for each pod: no other tenant waits for it.

Judged by the order of what happens, not by times: all that another namespace needs is there before the first
of the slow pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.credentials import Credentials
from elasticjob_operator.settings import Settings

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

CRD = Path(__file__).parents[2] / "crds" / "elasticjobs.elasticjob.dev.yaml"
SLOW_SECONDS = 20.0
DEADLINE = 60.0
JOBS = 8
REPLICAS = 20


@pytest.fixture
def tenants(
    devcluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Two namespaces: pods of the first are slow to be made."""
    monkeypatch.setenv("KUBECONFIG", str(devcluster.kubeconfig))
    devcluster.apply(CRD)
    wait_for(
        lambda: devcluster.kubectl("get", "elasticjobs", check=False).returncode == 0,
        DEADLINE,
        "elasticjobs are served",
    )
    other = f"{namespace[:50]}-other"
    devcluster.kubectl("create", "namespace", other)
    account = f"/api/v1/namespaces/{other}/serviceaccounts/default"
    wait_for(lambda: devcluster.api.is_ok(account), DEADLINE, "the other namespace has its service account")
    with devcluster.slow_writes(SLOW_SECONDS, [namespace], ["pods"]):
        yield namespace, other
    devcluster.kubectl("delete", "namespace", other, "--wait=false")


def job(namespace: str, name: str, replicas: int) -> Json:
    template = {"spec": {"containers": [{"name": "train", "image": "none"}]}}
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "handlerSource": "Image", "template": template},
    }


# shows: one tenant's admission webhook takes seconds for each pod
async def test_another_tenants_job_has_its_lease_and_its_pods_first(tenants: tuple[str, str]) -> None:
    slow, other = tenants

    async def pods(client: Client, namespace: str) -> int:
        page = await client.get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": JOB_LABEL})
        return len(page["items"])

    async def leases(client: Client, namespace: str) -> int:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        return len((await client.get(path, {"labelSelector": JOB_LABEL}))["items"])

    client = Client(Credentials())
    controller = Controller(client, Settings(namespaces=tenants, max_passes=4))
    controller.start()
    try:
        for number in range(JOBS):
            raw = await client.create(job_path(slow, "").rstrip("/"), job(slow, f"slow-{number}", REPLICAS))
            controller.source.changed(raw)
        async with asyncio.timeout(DEADLINE):
            while await leases(client, slow) < JOBS:  # what is left to do for these jobs is to make pods
                await asyncio.sleep(0.02)
            raw = await client.create(job_path(other, "").rstrip("/"), job(other, "quick", 4))
            controller.source.changed(raw)
            while await pods(client, other) < 4:
                await asyncio.sleep(0.02)
        assert await pods(client, slow) == 0
        await client.get(f"/apis/coordination.k8s.io/v1/namespaces/{other}/leases/quick-round")
    finally:
        await controller.aclose()
        await client.aclose()
