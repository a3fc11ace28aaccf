"""`make bench-jobs`: many small jobs applied at once; when do they train?

The API server, etcd, the controllers and the operator are the real processes; nodes and participants are
played (`jobs_nodes`). Fails unless every job trains, and no pod was taken for silent or replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jobs_nodes import Nodes
from benchmarks.k8s import NODE, ControlPlane
from benchmarks.meter import count_requests
from elasticjob.contract import names

_MERGE = "application/merge-patch+json"
_SAY_SECONDS = 5.0


def main() -> int:
    """Entry point."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ControlPlane() as plane:
        for namespace in _namespaces(options.namespaces):
            answer = plane.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            assert answer.ok, answer.text
        time.sleep(options.settle)
        figures = asyncio.run(_measure(plane, options))
        if not figures["all train"]:
            sys.stderr.write(plane.operator_log())
    print(json.dumps(figures, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["all train"] and not figures["replacements"] else 1


def _namespaces(count: int) -> Sequence[str]:
    return [f"team-{number}" for number in range(count)]


async def _measure(plane: ControlPlane, options: argparse.Namespace) -> dict[str, Any]:
    cluster = plane.cluster
    nodes = Nodes(cluster.server, str(cluster.ca_file), cluster.admin_token, options.connections)
    operator = psutil.Process(plane.operator_pid)
    processes = {"operator": operator, "API server": psutil.Process(cluster.component("apiserver").pid)}
    before = {name: sum(p.cpu_times()[:2]) for name, p in processes.items()}
    offset = plane.audit_log.stat().st_size
    spaces = _namespaces(options.namespaces)
    wanted = [(spaces[number % len(spaces)], f"job-{number}") for number in range(options.jobs)]
    nodes.start()
    began = said = time.monotonic()
    try:
        await asyncio.gather(*(_apply(nodes, key, options.pods) for key in wanted))
        applied = time.monotonic() - began
        while not _all_train(nodes, wanted) and time.monotonic() - began < options.limit:
            await asyncio.sleep(0.1)
            nodes.check()
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                print(f"{said - began:6.0f} s: {_state(nodes)}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - began
        rss = operator.memory_info().rss
        with plane.audit_log.open() as log:
            log.seek(offset)
            requests = count_requests(log.read())
        used = {name: round(sum(p.cpu_times()[:2]) - before[name], 1) for name, p in processes.items()}
        after = sorted(job.trains_after or options.limit for job in nodes.jobs.values())
        return {
            "jobs": options.jobs,
            "pods each": options.pods,
            "all train": _all_train(nodes, wanted),
            "seconds": round(seconds, 1),
            "applied after": round(applied, 1),
            "first, median, last": [round(after[at], 1) for at in (0, len(after) // 2, -1)] if after else [],
            "replacements": sum(max(0, len(job.pods) - options.pods) for job in nodes.jobs.values()),
            "requests": dict(requests),
            "CPU seconds": used,
            "operator MiB": round(rss / 2**20),
            "played": dict(nodes.counts),
            "slowest in ms": dict(nodes.slowest),
        }
    finally:
        await nodes.aclose()


async def _apply(nodes: Nodes, key: tuple[str, str], pods: int) -> None:
    namespace, name = key
    nodes.job(key)
    container = {"name": "train", "image": "played", "command": ["torchrun", "train.py"]}
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": pods,
            "handlerSource": "Image",
            "template": {"spec": {"nodeName": NODE, "containers": [container]}},
        },
    }
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
    assert await nodes.persist("apply", "POST", path, body, "application/json"), name


def _all_train(nodes: Nodes, wanted: Sequence[tuple[str, str]]) -> bool:
    return all(nodes.job(key).trains_after is not None for key in wanted)


def _state(nodes: Nodes) -> str:
    jobs = nodes.jobs.values()
    train = sum(job.trains_after is not None for job in jobs)
    paces = sorted({job.record.wait_renew_period_seconds for job in jobs if job.record is not None})
    pods = sum(len(job.pods) for job in jobs)
    return f"{train} of {len(jobs)} train, {pods} pods made, renewals every {paces} s"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--pods", type=int, default=8, help="of each job, default %(default)s")
    parser.add_argument("--namespaces", type=int, default=10, help="default %(default)s")
    parser.add_argument("--connections", type=int, default=64, help="of all nodes and participants together")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds, default %(default)s")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds before the jobs are applied")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
