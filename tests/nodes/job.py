"""A job on nodes with kubelets: an example's own script, with its checkpoints in a folder of this machine.

The nodes share this machine's file system, so a volume with a hostPath is one that pods on all nodes write.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from devcluster.kubelet.cluster import KubeletCluster
from tests.cluster_job import ClusterJob

ROOT = Path(__file__).resolve().parent.parent.parent
DIGITS = ROOT / "examples" / "digits"
IMAGE = "pytorch/pytorch"
CHECKPOINT_EVERY = 20

_SPREAD = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"elasticjob.dev/job-name": "job"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    }
}


@dataclass(frozen=True)
class Recovery:
    """What a fault led to; the times are seconds since it was struck."""

    fault: str
    cause: str
    account: str
    message: str
    detected_milliseconds: int | None
    """As the status has it; None if it does not."""
    next_round: float
    next_step: float
    resumed_from: int
    """The last step before the first one that was made afterwards."""


class NodesJob(ClusterJob):
    """`examples/digits` in the cluster's stand-in for PyTorch's image; ``folder`` gets its checkpoints."""

    cluster: KubeletCluster
    deadline = 400.0

    def __init__(self, cluster: KubeletCluster, namespace: str, folder: Path, name: str = "job") -> None:
        super().__init__(cluster, namespace, name)
        self.folder = folder

    # -- making it -----------------------------------------------------------------------------------------

    def apply(self, epochs: int = 100_000, pod: dict[str, Any] | None = None, **spec: Any) -> None:
        """Apply it; with so many epochs it trains until it is deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o777)
        files = {file.name: file.read_text() for file in DIGITS.glob("*.py")}
        meta = {"name": "digits", "namespace": self.namespace}
        self.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files})
        container = {
            "image": IMAGE,
            "command": ["torchrun", "train.py"],
            "args": [
                "--checkpoint-dir=/checkpoints",
                "--step-log=/checkpoints/steps.jsonl",
                f"--checkpoint-every={CHECKPOINT_EVERY}",
                f"--epochs={epochs}",
                "--width=64",
                "--depth=2",
            ],
            "workingDir": "/workspace",
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "volumeMounts": [
                {"name": "code", "mountPath": "/workspace"},
                {"name": "checkpoints", "mountPath": "/checkpoints"},
            ],
        }
        volumes = [
            {"name": "code", "configMap": {"name": "digits"}},
            {"name": "checkpoints", "hostPath": {"path": str(self.folder), "type": "Directory"}},
        ]
        given = {"affinity": _SPREAD, "volumes": volumes, **(pod or {})}
        self.create_job(container, pod=given, **{"handlerSource": "Injected", "minReplicas": 1, **spec})

    # -- following it --------------------------------------------------------------------------------------

    def steps(self) -> list[dict[str, Any]]:
        """What rank 0 has logged, in the order of writing."""
        file = self.folder / "steps.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def training(self, number: int, members: int | None = None) -> dict[str, Any]:
        """Wait until this round, or a later one, has made a step; returns status.currentRound."""

        def trains() -> dict[str, Any] | None:
            now: dict[str, Any] = self.status().get("currentRound", {})
            if now.get("number", 0) < number or members not in (None, now.get("members")):
                return None
            return now if any(step["round"] == now["number"] for step in self.steps()[-500:]) else None

        found: dict[str, Any] = self.wait_for(trains, f"round {number} trains, members: {members}")
        return found

    def member(self, rank: int) -> str:
        """The pod that has this rank."""
        found = (p["podName"] for p in self.status()["participants"] if p.get("groupRank") == rank)
        return str(next(found))

    def node_of(self, pod: str) -> str:
        """Where it runs."""
        return str(self.pods()[pod]["spec"]["nodeName"])

    def recovered(self, fault: str, number: int, struck: float, members: int | None = None) -> Recovery:
        """Wait until training goes on after the round ``number``, and say how; nothing was lost or repeated
        but the steps since the last checkpoint."""
        current = self.training(number + 1, members)
        steps = self.steps()
        first = next(step for step in steps if step["round"] > number)
        before = max((s["step"] for s in steps if s["round"] <= number), default=0)
        resumed = first["step"] - 1
        saved = before - before % CHECKPOINT_EVERY
        assert saved - CHECKPOINT_EVERY <= resumed <= before, f"resumed from {resumed}, {before} were done"
        assert resumed % CHECKPOINT_EVERY == 0, f"{resumed} is no checkpoint"
        samples: dict[int, str] = {}
        for step in steps:
            assert samples.setdefault(step["step"], step["ids"]) == step["ids"], "a step was redone otherwise"
        ended = next(r for r in self.status()["roundHistory"] if r["number"] == number)["end"]
        established = _seconds(current["establishedTime"])
        return Recovery(
            fault=fault,
            cause=ended["cause"],
            account=ended.get("account", ""),
            message=ended.get("message", ""),
            detected_milliseconds=ended.get("detectMilliseconds"),
            next_round=established - struck,
            next_step=first["time"] - struck,
            resumed_from=resumed,
        )

    # -- hurting it ----------------------------------------------------------------------------------------

    def pids(self, pod: str, container: str = "train") -> list[int]:
        """The processes of a pod's container, torchrun first, as this machine numbers them."""
        found = self.pods()[pod]
        statuses = found["status"]["containerStatuses"]
        (own,) = (status for status in statuses if status["name"] == container)
        return self.cluster.nodes[self.node_of(pod)].container_pids(own["containerID"].rpartition("/")[2])

    def worker(self, pod: str) -> int:
        """The training process of a pod."""
        return next(pid for pid in self.pids(pod)[1:] if b"train.py" in _command(pid))

    def strike(self, pid: int, number: signal.Signals) -> float:
        """Send a signal; returns when."""
        os.kill(pid, number)
        return time.time()


def _command(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
