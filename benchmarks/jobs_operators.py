"""The operator of `benchmarks.jobs`: begun, killed, followed by another; and what it costs meanwhile.

Operators run as the chart runs them, with leader election, but as an administrator, and without probes and
the chart's policies.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.jobs_operator import Clocks
from benchmarks.k8s import ControlPlane
from benchmarks.meter import OPERATOR_AGENTS

_SAMPLE_SECONDS = 0.25
_ANSWER_SECONDS = 180.0


class Operator:
    """One process. ``at`` are the moments at which it was begun, and first led (monotonic; 0: not yet)."""

    def __init__(self, plane: ControlPlane, folder: Path, number: int, arguments: Sequence[str] = ()) -> None:
        self._file = folder / f"operator-{number}.json"
        self.log = folder / f"operator-{number}.log"
        command = [sys.executable, "-m", "benchmarks.jobs_operator", str(self._file), "--leader-elect"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--leader-elect-resource-namespace=default", *arguments],
                env={**os.environ, "KUBECONFIG": str(plane.cluster.kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = self._process.pid
        self.process = psutil.Process(self.pid)

    async def clocks(self) -> Clocks:
        """What it has measured so far."""
        asked = time.monotonic()
        self._process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(_ANSWER_SECONDS):
            while True:
                await asyncio.sleep(0.05)
                if self._file.exists():
                    found = Clocks.read(self._file)
                    if found.at >= asked:
                        return found

    async def listens(self) -> None:
        """Wait until it has listed everything and stands for election, so that it can be asked."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            while b"waiting to become the leading operator" not in self.log.read_bytes():
                assert self._process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def leads(self) -> None:
        """Wait until it leads."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            while b"became the leading operator" not in self.log.read_bytes():
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        """Kill it, without a shutdown."""
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Sample:
    """CPU times are seconds since the beginning of a process, or of the machine."""

    at: float
    operator_cpu: float
    operator_mebibytes: float
    apiserver_cpu: float
    ours_cpu: float
    """The CPU time of operator, control plane and this process."""
    machine_cpu: float


class Samples:
    """Samples of one operator and the machine, as long as ``run`` runs."""

    def __init__(self, plane: ControlPlane, operator: Operator) -> None:
        self._apiserver, *others = (
            psutil.Process(plane.cluster.component(one).pid)
            for one in ("apiserver", "etcd", "controller-manager")
        )
        self.operator = operator
        self._others = [*others, psutil.Process()]
        self.rows: list[Sample] = []

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.take()
            await asyncio.sleep(_SAMPLE_SECONDS)

    def take(self) -> Sample:
        """Take one sample."""
        times = psutil.cpu_times()
        machine = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        try:
            operator = self.operator.process
            cpu, memory = sum(operator.cpu_times()[:2]), operator.memory_info().rss / 2**20
        except psutil.NoSuchProcess:  # between two operators
            cpu, memory = 0.0, 0.0
        apiserver = sum(self._apiserver.cpu_times()[:2])
        ours = cpu + apiserver + sum(sum(process.cpu_times()[:2]) for process in self._others)
        self.rows.append(Sample(time.monotonic(), cpu, memory, apiserver, ours, machine))
        return self.rows[-1]

    def highest(self, since: float = 0.0) -> float:
        """The operators' highest memory, MiB."""
        return max((row.operator_mebibytes for row in self.rows if row.at >= since), default=0.0)


def writes_to_what_is_gone(requests: Counter[str]) -> int:
    """How many of ``operator_requests`` would have changed an object that was gone."""
    return sum(
        count
        for what, count in requests.items()
        if what.endswith(" 404") and not what.startswith(("get", "list", "watch"))
    )


def operator_requests(plane: ControlPlane, offset: int) -> Counter[str]:
    """Requests of operators since a place in the audit log, by verb, resource and code where it is an
    error; a watch counts when it begins, the election not at all."""
    counts: Counter[str] = Counter()
    with plane.audit_log.open() as log:
        log.seek(offset)
        for line in log:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # still being written
            if event["stage"] != ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"):
                continue
            reference = event.get("objectRef", {})
            agent = re.split(r"[/ ]", event.get("userAgent", ""))[0]
            if agent not in OPERATOR_AGENTS or reference.get("name") == "elasticjob-operator":
                continue
            what = "/".join(filter(None, (reference.get("resource"), reference.get("subresource"))))
            code = event.get("responseStatus", {}).get("code", 0)
            counts[f"{event['verb']} {what}{'' if code < 300 else f' {code}'}"] += 1
    return counts
