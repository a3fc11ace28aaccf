"""Memory of a process that has known thousands of pods, in bytes: before, with them, and when they are gone.

A process of its own, because what others have left in one would count.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psutil

from elasticjob.contract.names import ATTEMPT_LABEL, JOB_LABEL, SLOT_LABEL
from elasticjob_operator import gc_tuning
from elasticjob_operator.controller.registry import Registry
from elasticjob_operator.observe.seen_pod import SeenPod, read_pod
from elasticjob_operator.observe.store import Store

_JOBS, _PODS = 4_000, 8


def _meta(name: str) -> dict[str, Any]:
    return {"namespace": "ns", "name": name, "uid": f"uid-of-{name}", "resourceVersion": "5"}


def _pod(job: str, slot: int) -> Any:
    labels = {JOB_LABEL: job, SLOT_LABEL: str(slot), ATTEMPT_LABEL: "0"}
    raw = {
        "metadata": {**_meta(f"{job}-{slot}-0"), "labels": labels},
        "spec": {},
        "status": {"phase": "Running"},
    }
    return json.loads(json.dumps(raw))  # as it is read: strings of its own


async def _figures() -> list[int]:
    loop = asyncio.get_running_loop()
    found = gc_tuning.GcTuning(loop)
    found.start()
    pods: Store[SeenPod] = Store(lambda _: None, loop.time)
    registry = Registry(lambda _: None, lambda _: None)
    names = [f"job{number}" for number in range(_JOBS)]
    figures = [psutil.Process().memory_info().rss]
    for name in names:
        raw = {"metadata": {**_meta(name), "generation": 1}, "spec": {"replicas": _PODS}}
        registry.update(json.loads(json.dumps(raw)))
        for slot in range(_PODS):
            pods.put(read_pod(_pod(name, slot), None))
        await asyncio.sleep(0)
    figures.append(psutil.Process().memory_info().rss)
    for name in names:
        registry.deleted({"metadata": _meta(name)})
        for slot in range(_PODS):
            pod = f"{name}-{slot}-0"
            pods.remove("ns", pod, _meta(pod)["uid"], 7)
    for _ in range(2):
        pods.age()
        registry.age()
    found.give_back()
    figures.append(psutil.Process().memory_info().rss)
    found.stop()
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_figures())))
