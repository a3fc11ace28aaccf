"""What a round costs: requests by the audit log, bytes by the API server's metrics, CPU time by process."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from benchmarks.k8s import ControlPlane
from benchmarks.swarm_messages import SWARM_AGENT

OPERATOR_AGENTS = ("elasticjob-operator", "kopf")
_SUMS = {
    "body_bytes": "apiserver_request_body_size_bytes_sum",
    "watch_bytes": "apiserver_watch_events_sizes_sum",
}


@dataclass(frozen=True)
class Reading:
    """Totals so far. `bytes` are named as in `benchmarks.results`."""

    operator_cpu: float
    apiserver_cpu: float
    bytes: Mapping[str, float]
    audit_offset: int


class Meter:
    """Reads the totals of one control plane, and what was added between two readings."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._operator = psutil.Process(plane.operator_pid)
        self._apiserver = psutil.Process(plane.cluster.component("apiserver").pid)

    def read(self) -> Reading:
        """The present totals."""
        metrics = self._plane.api.request("GET", "/metrics").text
        return Reading(
            _cpu(self._operator),
            _cpu(self._apiserver),
            {name: _sum(metrics, series) for name, series in _SUMS.items()},
            self._plane.audit_log.stat().st_size,
        )

    def since(self, before: Reading) -> dict[str, float]:
        """The use since `before`, by name."""
        requests = self._requests(before.audit_offset)
        now = self.read()
        return {
            "requests": requests[SWARM_AGENT],
            "operator_requests": sum(requests[agent] for agent in OPERATOR_AGENTS),
            "operator_cpu_seconds": now.operator_cpu - before.operator_cpu,
            "apiserver_cpu_seconds": now.apiserver_cpu - before.apiserver_cpu,
            "operator_megabytes": self._operator.memory_info().rss / 2**20,
            "apiserver_megabytes": self._apiserver.memory_info().rss / 2**20,
            **{name: value - before.bytes[name] for name, value in now.bytes.items()},
        }

    def _requests(self, offset: int) -> Counter[str]:
        with self._plane.audit_log.open() as log:
            log.seek(offset)
            return count_requests(log.read())


def count_requests(audit: str) -> Counter[str]:
    """Requests by the first word of the user agent; a watch counts when it begins."""
    counts: Counter[str] = Counter()
    for line in audit.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # still being written
        if event["stage"] == ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"):
            counts[re.split(r"[/ ]", event.get("userAgent", ""))[0]] += 1
    return counts


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _sum(metrics: str, series: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith((f"{series}{{", f"{series} "))
    )
