"""DLRover: dlrover-run in each pod, and its master for a cluster without Kubernetes (--platform local)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.c10d import free_port
from benchmarks.rivals.coordinator import Coordinator
from benchmarks.rivals.environments import environment_of
from benchmarks.rivals.systems import Alone, Launch
from benchmarks.rivals.training import TRAIN, Training

CONFIG = "lastcall_timeout=1"
"""Instead of 60 s: how long a round waits for pods beyond the minimum."""
XPU = {"DLROVER_MASTER_SERVICE_TYPE": "grpc"}


class Session(Alone):
    """The master is on the node of the last pod, which is not rank 0's: ranks are those of the nodes."""

    def __init__(
        self, folder: Path, master: Coordinator, address: str, pods: int, minimum: int, name: str
    ) -> None:
        self.host = pods - 1
        self._folder = folder
        self._master = master
        self._nodes = f"--nnodes={minimum}:{pods + 1}"
        self._environment = {
            **XPU,
            "DLROVER_MASTER_ADDR": address,
            "ELASTIC_JOB_NAME": name,
            "NODE_NUM": str(pods),
            "NODE_TYPE": "worker",
        }

    def launch(self, pod: int) -> Launch:
        """A pod that is made again has the same rank among nodes."""
        arguments = [self._nodes, "--nproc_per_node=1", "--max_restarts=1000000", f"--rdzv_conf={CONFIG}"]
        identity = {"NODE_RANK": str(pod), "NODE_ID": str(pod), "POD_NAME": f"pod-{pod}"}
        command = [str(self._folder / "dlrover-run"), *arguments, str(TRAIN)]
        return Launch(command, {**self._environment, **identity})

    def kill_coordinator(self) -> None:
        """The master."""
        self._master.kill()

    def start_coordinator(self) -> None:
        """With the same address, as behind a service."""
        self._master.start()


class Dlrover:
    """With checkpoints in storage, as the others."""

    name = "DLRover"
    version = "dlrover 0.6.1, torch 2.15.0"
    flags = f"master with --platform local --xpu_type cpu, --rdzv_conf={CONFIG}, --max_restarts=1000000"

    def prepare(self) -> None:
        """dlrover with its extras k8s and torch, and protobuf, which it imports and does not require."""
        self._bin = environment_of("dlrover")

    @contextlib.contextmanager
    def session(self, training: Training, pods: int, minimum: int) -> Iterator[Session]:
        """With a master of its own."""
        port, name = free_port(), "rivals"
        words = [
            "--platform=local",
            f"--port={port}",
            f"--node_num={pods}",
            f"--job_name={name}",
            "--xpu_type=cpu",
        ]
        command = [str(self._bin / "python"), "-m", "dlrover.python.master.main", *words]
        with Coordinator(command, Path(training.folder) / "master.log", XPU) as master:
            yield Session(self._bin, master, f"127.0.0.1:{port}", pods, minimum, name)
