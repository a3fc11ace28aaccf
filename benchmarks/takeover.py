"""`python -m benchmarks.takeover --pods 5000`: what it costs an operator to begin to lead.

A real API server with the pods and Leases of one job, of the size that they have in a cluster. This process
then takes over as the operator does that stood by and has listed everything: bytes and requests, the longest
time for which the event loop was held, and memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections import Counter
from typing import Any

import psutil

from benchmarks.k8s import NODE, ControlPlane
from elasticjob.contract import names
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.credentials import Credentials
from elasticjob_operator.settings import Settings

_NAMESPACE = "bench"
_JOB = "large"
_AT_ONCE = 32
_TICK_SECONDS = 0.002
_MODULE: Any = sys.modules[Client.__module__]


class Counting:
    """What the answers to requests weigh."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes = self.largest = 0
        self._object, self._page = _MODULE.object_of, _MODULE.page_of

    def object(self, name: str, answer: bytes) -> Any:
        """Count, and do what the client's own function does."""
        self._count(name, answer)
        return self._object(name, answer)

    def page(self, name: str, answer: bytes) -> Any:
        """Count, and do what the client's own function does."""
        self._count(name, answer)
        return self._page(name, answer)

    def _count(self, name: str, answer: bytes) -> None:
        method, _, path = name.partition(" ")
        self.requests[f"{method} {path.rpartition('/')[2]}"] += 1
        self.bytes += len(answer)
        self.largest = max(self.largest, len(answer))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.takeover", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--pods", type=int, default=5000)
    options = parser.parse_args()
    with ControlPlane() as plane:
        os.environ["KUBECONFIG"] = str(plane.cluster.kubeconfig)
        psutil.Process(plane.operator_pid).kill()
        asyncio.run(_make(options.pods))
        print(json.dumps(asyncio.run(_take_over()), indent=2))


async def _make(pods: int) -> None:
    client = Client(Credentials())
    gate = asyncio.Semaphore(_AT_ONCE)
    try:
        jobs = f"/apis/{names.API_VERSION}/namespaces/{_NAMESPACE}/{names.PLURAL}"
        spec = {"replicas": pods, "minReplicas": 1, "managedBy": "elasticjob.dev/operator"}
        meta = {"name": _JOB, "namespace": _NAMESPACE}
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": spec}
        await client.create(jobs, body)
        await asyncio.gather(*(_one(client, gate, number) for number in range(pods)))
    finally:
        await client.aclose()


async def _one(client: Client, gate: asyncio.Semaphore, number: int) -> None:
    name = f"{_JOB}-{number}"
    labels = {names.JOB_LABEL: _JOB, names.SLOT_LABEL: str(number)}
    env = [{"name": f"SETTING_{index}", "value": f"value-of-setting-{index}" * 3} for index in range(30)]
    container = {"name": "train", "image": "played", "command": ["torchrun", "train.py"], "env": env}
    pod = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": NODE, "containers": [container]},
    }
    record = ParticipantRecord(f"id-{number}", "Leaving", "10.0.0.1:4000").dump()
    async with gate:
        made = await client.create(f"/api/v1/namespaces/{_NAMESPACE}/pods", pod)
        meta = {"name": name, "labels": labels, "annotations": {names.PARTICIPANT_ANNOTATION: record}}
        lease = {"metadata": meta, "spec": {"holderIdentity": made["metadata"]["uid"]}}
        await client.create(f"/apis/coordination.k8s.io/v1/namespaces/{_NAMESPACE}/leases", lease)


async def _take_over() -> dict[str, Any]:
    client = Client(Credentials())
    controller = Controller(client, Settings(namespaces=(_NAMESPACE,)))
    controller.start(leading=False)
    counting = Counting()
    try:
        await controller.cache.synced()
        gc.collect()
        process = psutil.Process()
        before = process.memory_info().rss
        highest = before
        longest = 0.0
        _MODULE.object_of, _MODULE.page_of = counting.object, counting.page
        began = time.monotonic()
        leading = asyncio.create_task(controller.lead())
        while not leading.done() or not controller.passes or controller.under_way():
            due = time.monotonic() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            longest = max(longest, time.monotonic() - due)
            highest = max(highest, process.memory_info().rss)
        await leading
        return {
            "pods": len(controller.cache.pods),
            "seconds": round(time.monotonic() - began, 2),
            "requests": dict(counting.requests),
            "MB read": round(counting.bytes / 1e6, 1),
            "largest answer, MB": round(counting.largest / 1e6, 2),
            "longest hold of the event loop, ms": round(1000 * longest),
            "MiB before": round(before / 2**20),
            "MiB more at most": round((highest - before) / 2**20),
        }
    finally:
        await controller.aclose()
        await client.aclose()


if __name__ == "__main__":
    main()
