"""ElasticJob: real operator and API server, and Pod objects whose status the benchmark writes.

The operator makes no pods here: the benchmark does, after the same pause as for all systems, as a Job's
controller would. Each start of an agent is a new pod with the same index.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from benchmarks.k8s import PODS, ControlPlane, K8sSession
from benchmarks.memory_runs import PER_POD
from benchmarks.rivals.environments import compile_this
from benchmarks.rivals.systems import Launch
from benchmarks.rivals.training import TRAIN, Training
from benchmarks.torchruns import arguments_of
from elasticjob.contract import names

SPEC = {"rendezvous": {"lastCallTimeoutSeconds": 1}, "scaling": {"scaleUpDelaySeconds": 0}}
"""Instead of 15 s and 10 s: as c10d's."""


class Session(K8sSession):
    """One ElasticJob. The operator is on the node of the last pod."""

    def __init__(
        self, plane: ControlPlane, job: str, pods: int, minimum: int, *, warm: bool, memory: bool
    ) -> None:
        super().__init__(plane, job, pods, minimum, 1)
        self.host = pods - 1
        self._warm = warm
        self._memory = memory
        self._lives = [0] * (pods + 1)
        self.apply({"replicas": pods, "minReplicas": minimum, "failurePolicy": {"application": {}}, **SPEC})

    def launch(self, pod: int) -> Launch:
        """A new Pod object, and its torchrun once it has its rights."""
        self._pods[pod] = f"{self.job}-{pod}-{self._lives[pod]}"
        self._lives[pod] += 1
        self.make_pod(pod, names.JOB_LABEL)
        self.await_rights([self._pods[pod]])
        seat = self.seat(pod)
        if self._warm:
            seat = replace(seat, config={**seat.config, "warm": "on"})
        environment = dict(seat.environment)
        if self._memory:
            environment |= {names.MEMORY_ENV: str(PER_POD), names.NODE_ENV: f"node-{pod}"}
        command = [str(Path(sys.executable).parent / "torchrun"), *arguments_of(seat)]
        words = ["--max-restarts=1000000", str(TRAIN), "progress", *(["memory"] if self._memory else [])]
        return Launch([*command, *words], environment)

    def ended(self, index: int, code: int) -> None:
        """As kubelet says it."""
        super().ended(index, 128 - code if code < 0 else code)

    def resize(self, pods: int) -> None:
        """spec.replicas."""
        self.patch({"replicas": pods})

    def removing(self, pod: int) -> None:
        """Its deletion begins."""
        self._api.request("DELETE", f"{PODS}/{self._pods[pod]}", {"gracePeriodSeconds": 30})

    def kill_coordinator(self) -> None:
        """The operator."""
        self._plane.kill_operator()

    def start_coordinator(self) -> None:
        """The operator."""
        self._plane.start_operator()


class Ours:
    """In one of three variants. One control plane serves them all."""

    version = f"elasticjob {version('elasticjob')}, torch {version('torch')}"

    def __init__(self, plane: ControlPlane, *, warm: bool = False, memory: bool = False) -> None:
        self._plane = plane
        self._warm = warm
        self._memory = memory
        words = ["ElasticJob", *(["warm"] if warm else []), *(["memory"] if memory else [])]
        self.name = ", ".join(words)
        self.flags = "lastCallTimeoutSeconds: 1, scaleUpDelaySeconds: 0, --max-restarts=1000000"

    def prepare(self) -> None:
        """It is this one."""
        compile_this()

    @contextlib.contextmanager
    def session(self, training: Training, pods: int, minimum: int) -> Iterator[Session]:
        """A new job."""
        del training
        job = self.name.lower().replace(", ", "-")
        session = Session(self._plane, job, pods, minimum, warm=self._warm, memory=self._memory)
        try:
            yield session
        finally:
            session.close()
