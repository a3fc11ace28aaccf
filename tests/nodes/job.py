"""`examples/digits` as a job on two nodes, real ones or the stand-in: making it, following it, hurting it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.kubelet.cluster import KubeletCluster
from devcluster.kubelet.node import Node
from elasticjob.contract.names import DRAIN_ANNOTATION, JOB_LABEL
from tests.cluster_job import ClusterJob
from tests.nodes.table import REAL, STAND_IN, Recovery

ROOT = Path(__file__).resolve().parent.parent.parent
DIGITS = ROOT / "examples" / "digits"
RECORDED = ROOT / "devcluster" / "tests" / "recorded"
"""What kubelets have written of pods."""
TORCH_IMAGE = "pytorch/pytorch"
CHECKPOINT_EVERY = 20
BOTH = pytest.mark.parametrize("cluster", ["kubelets", "played"], indirect=True)
"""For a test of a fault that the stand-in can have, too."""

_HOST_NAME = "kubernetes.io/hostname"
_RESERVED = 3 << 30
"""Of a node's disk: more than others write on this machine's while a test runs."""
_CHECKPOINTS = "/checkpoints"


class DigitsJob(ClusterJob):
    """The job; ``folder``, which pods on all nodes write, gets its checkpoints."""

    nodes: str
    """Real, or the stand-in."""
    deadline = 400.0

    def __init__(self, cluster: Any, namespace: str, folder: Path, name: str = "job") -> None:
        super().__init__(cluster, namespace, name)
        self.folder = folder

    # -- making it -----------------------------------------------------------------------------------------

    def apply(
        self,
        *,
        epochs: int = 100_000,
        container: Mapping[str, Any] | None = None,
        pod: Mapping[str, Any] | None = None,
        sidecars: Sequence[dict[str, Any]] = (),
        **spec: Any,
    ) -> None:
        """Apply it, with further fields of the training container, of the pod and of the job, and containers.

        With so many epochs it trains until it is deleted.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o777)
        own_container, own_pod = self._template(self._arguments(epochs))
        given = {"affinity": self._spread(), **own_pod, **(pod or {})}
        full = {**own_container, **(container or {})}
        self.create_job(full, pod=given, sidecars=sidecars, **{"minReplicas": 1, **spec})

    def _template(self, arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of the container, and of the pod."""
        raise NotImplementedError

    def _arguments(self, epochs: int) -> list[str]:
        return [f"--checkpoint-every={CHECKPOINT_EVERY}", f"--epochs={epochs}", "--width=64", "--depth=2"]

    def _spread(self) -> dict[str, Any]:
        labels = {"matchLabels": {JOB_LABEL: self.name}}
        term = {"weight": 100, "podAffinityTerm": {"labelSelector": labels, "topologyKey": _HOST_NAME}}
        return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}

    def end(self) -> None:
        """Delete it; returns when its pods are gone, so that the next test is not slowed."""
        self.delete("--wait=false")
        self.wait_for(lambda: not self.pods(), "its pods are gone")

    # -- following it --------------------------------------------------------------------------------------

    def steps(self) -> list[dict[str, Any]]:
        """What rank 0 has logged, in the order of writing."""
        file = self.folder / "steps.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def training(self, number: int = 1, members: int | None = None) -> dict[str, Any]:
        """Wait until this round, or a later one, has made a step; returns status.currentRound."""

        def trains() -> dict[str, Any] | None:
            now: dict[str, Any] = self.status().get("currentRound", {})
            if now.get("number", 0) < number or members not in (None, now.get("members")):
                return None
            return now if any(step["round"] == now["number"] for step in self.steps()[-500:]) else None

        found: dict[str, Any] = self.wait_for(trains, f"round {number} trains, members: {members}")
        return found

    def takes_part(self) -> None:
        """Wait until the leader of the running round says that all its workers call should_stop."""

        def said() -> bool:
            now = self.status()
            path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
            lease = self.cluster.read(f"{path}/{now['currentRound']['leaderPodName']}")
            text = lease["metadata"].get("annotations", {}).get(DRAIN_ANNOTATION, "{}")
            return bool(json.loads(text).get("nonce") == now["internal"]["round"]["nonce"])

        self.wait_for(said, "the round can be drained")

    def nothing_runs(self) -> None:
        """Wait until all its pods have ended, or are gone."""
        self.wait_for(lambda: all(map(self.has_ended, self.pods())), "none of its pods runs")

    def goes_on(self) -> int:
        """Wait for ten more steps; returns the round's number. Each of its steps follows the one before."""
        before = len(self.steps())
        self.wait_for(lambda: len(self.steps()) >= before + 10, "training goes on")
        return self._last_round_in_order()

    def trained_in_one_round(self) -> None:
        """Assert that a job that is complete has made each of its steps once, from the first on."""
        assert self._last_round_in_order() == 1
        assert self.steps()[0]["step"] == 1

    def _last_round_in_order(self) -> int:
        steps = self.steps()
        number = int(steps[-1]["round"])
        made = [step["step"] for step in steps if step["round"] == number]
        assert made == list(range(made[0], made[0] + len(made))), f"round {number} made the steps {made}"
        return number

    def member(self, rank: int) -> str:
        """The pod that has this rank."""
        found = (p["podName"] for p in self.status()["participants"] if p.get("groupRank") == rank)
        return str(next(found))

    def node_of(self, pod: str) -> str:
        """Where it runs."""
        return str(self.pods()[pod]["spec"]["nodeName"])

    def has_ended(self, pod: str) -> bool:
        """Whether it is gone, or Succeeded or Failed."""
        found = self.pods().get(pod)
        return found is None or found["status"]["phase"] in ("Succeeded", "Failed")

    def is_ready(self, node: str) -> bool:
        """Whether the API server calls the node ready."""
        conditions = self.cluster.read(f"/api/v1/nodes/{node}")["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def end_of(self, number: int) -> dict[str, Any]:
        """How a round ended."""
        found: dict[str, Any] = next(r for r in self.status()["roundHistory"] if r["number"] == number)["end"]
        return found

    def recovered(self, fault: str, struck: float, number: int = 1, members: int | None = None) -> Recovery:
        """Wait until training goes on after the round ``number``, and say how; nothing was lost or repeated
        but the steps since the last checkpoint, and none at all where the round was drained."""
        current = self.training(number + 1, members)
        steps = self.steps()
        first = next(step for step in steps if step["round"] > number)
        before = max((s["step"] for s in steps if s["round"] <= number), default=0)
        resumed = first["step"] - 1
        ended = self.end_of(number)
        drained = ended.get("drain") == "Stopped"
        saved = before - before % CHECKPOINT_EVERY
        assert not drained or resumed == before, (
            f"resumed from {resumed}, {before} were done: a step was lost"
        )
        assert saved - CHECKPOINT_EVERY <= resumed <= before, f"resumed from {resumed}, {before} were done"
        assert drained or resumed % CHECKPOINT_EVERY == 0, f"{resumed} is no checkpoint"
        samples: dict[int, str] = {}
        for step in steps:
            assert samples.setdefault(step["step"], step["ids"]) == step["ids"], "a step was redone otherwise"
        return Recovery(
            fault=fault,
            nodes=self.nodes,
            cause=ended["cause"],
            account=ended.get("account", ""),
            message=ended.get("message", ""),
            detected_milliseconds=ended.get("detectMilliseconds"),
            next_round=_seconds(current["establishedTime"]) - struck,
            next_step=first["time"] - struck,
            resumed_from=resumed,
            round=int(first["round"]),
        )

    # -- hurting it ----------------------------------------------------------------------------------------

    def pids(self, pod: str) -> list[int]:
        """The processes of a pod's training container, torchrun first, as this machine numbers them."""
        raise NotImplementedError

    def worker(self, pod: str) -> int:
        """The training process of a pod."""
        return next(pid for pid in self.pids(pod)[1:] if b"train.py" in _command(pid))

    def strike(self, pid: int, number: signal.Signals) -> float:
        """Send a signal; returns when."""
        os.kill(pid, number)
        return time.time()

    def out_of_memory(self, pod: str, victim: int) -> float:
        """Let the kernel kill a process of a pod's container because its memory is full; returns when."""
        raise NotImplementedError

    def fill_disk(self, pod: str) -> float:
        """Use more disk than the pod's container may, which is 20 MiB; returns when."""
        raise NotImplementedError

    def short_of_disk(self, pod: str) -> AbstractContextManager[float]:
        """Inside of the block the node of a pod is short of disk; yields since when."""
        raise NotImplementedError

    def power_off(self, node: str) -> float:
        """Switch a node off; returns when."""
        raise NotImplementedError

    def power_on(self, node: str) -> None:
        """Switch it on again."""
        raise NotImplementedError


class NodesJob(DigitsJob):
    """On nodes with kubelets, in an image, with its script in a ConfigMap and its checkpoints on a claim.

    The nodes share this machine's file system, so a volume with a hostPath stands for one that pods on all
    nodes may write.
    """

    cluster: KubeletCluster
    nodes = REAL

    def __init__(self, cluster: KubeletCluster, namespace: str, folder: Path, name: str = "job") -> None:
        super().__init__(cluster, namespace, folder, name)
        self.host_folders: dict[str, Path] = {}
        """Further folders of this machine, by where pods see them."""

    def _template(self, arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        files = {file.name: file.read_text() for file in DIGITS.glob("*.py")}
        meta = {"name": self.name, "namespace": self.namespace}
        self.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files})
        self._claim()
        container = {
            "image": TORCH_IMAGE,
            "command": ["torchrun", "train.py"],
            "args": [
                f"--checkpoint-dir={_CHECKPOINTS}",
                f"--step-log={_CHECKPOINTS}/steps.jsonl",
                *arguments,
            ],
            "workingDir": "/workspace",
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "volumeMounts": [
                {"name": "code", "mountPath": "/workspace"},
                {"name": "checkpoints", "mountPath": _CHECKPOINTS},
                *({"name": _volume(where), "mountPath": where} for where in self.host_folders),
            ],
        }
        volumes = [
            {"name": "code", "configMap": {"name": self.name}},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": self.name}},
            *(
                {"name": _volume(where), "hostPath": {"path": str(folder), "type": "Directory"}}
                for where, folder in self.host_folders.items()
            ),
        ]
        return container, {"volumes": volumes}

    def create_job(self, *args: Any, **spec: Any) -> None:
        """With the handler injected, as by default."""
        super().create_job(*args, **{"handlerSource": "Injected", **spec})

    def _claim(self) -> None:
        volume = f"{self.namespace}-{self.name}"
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        path = {"path": str(self.folder), "type": "Directory"}
        self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    **shared,
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": self.namespace, "name": self.name},
                    "hostPath": path,
                },
            }
        )
        self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": {**shared, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
            }
        )

    def end(self) -> None:
        """Delete its volume, too."""
        super().end()
        self.cluster.kubectl("delete", "pv", f"{self.namespace}-{self.name}", "--wait=false")

    def pids(self, pod: str, container: str = "train") -> list[int]:
        """The processes of a pod's container, torchrun first, as this machine numbers them."""
        node, found = self._container(pod, container)
        return node.container_pids(found)

    def _container(self, pod: str, name: str) -> tuple[Node, str]:
        """A pod's node, and the id of its container of this name."""
        statuses = self.pods()[pod]["status"]["containerStatuses"]
        (own,) = (status for status in statuses if status["name"] == name)
        return self.cluster.nodes[self.node_of(pod)], own["containerID"].rpartition("/")[2]

    def power_off(self, node: str) -> float:
        """Switch a node off; returns when."""
        struck = time.time()
        self.cluster.nodes[node].kill()
        return struck

    def power_on(self, node: str) -> None:
        """Switch it on again."""
        self.cluster.nodes[node].start()

    def out_of_memory(self, pod: str, victim: int) -> float:
        """Fill the memory of a pod's container until the kernel kills ``victim``; returns when."""
        node, container = self._container(pod, "train")
        node.fill_memory(container, victim)
        return time.time()

    def fill_disk(self, pod: str) -> float:
        """Use more disk than the pod's container may, which is 20 MiB; returns when."""
        fill = "with open('/tmp/full', 'wb') as file: file.write(bytes(50 << 20))"
        struck = time.time()
        self.kubectl("exec", pod, "-c", "train", "--", "python", "-c", fill)
        return struck

    @contextlib.contextmanager
    def short_of_disk(self, pod: str) -> Iterator[float]:
        """Fill the disk of a pod's node from that pod; inside of the block the kubelet may use no more of it.

        Yields when it was full.
        """
        node = self.cluster.nodes[self.node_of(pod)]
        file = "os.open('/tmp/full', os.O_CREAT | os.O_RDWR)"
        fill = f"import os; os.posix_fallocate({file}, 0, {2 * _RESERVED})"
        command = ["-n", self.namespace, "exec", pod, "-c", "train", "--", "python", "-c", fill]
        node.reserve_disk(_RESERVED)
        try:
            self.wait_for(
                lambda: self.cluster.kubectl(*command, check=False).returncode == 0,
                "the kubelet, started again, knows the pod, which fills the disk",
            )
            yield time.time()
        finally:
            node.configure_kubelet({})


class StandInJob(DigitsJob):
    """On nodes that are played, with the programs and folders of this machine."""

    cluster: Cluster
    nodes = STAND_IN

    def _template(self, arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        script = [str(DIGITS / "train.py"), f"--checkpoint-dir={self.folder}"]
        container = {
            "command": ["torchrun", *script, f"--step-log={self.folder / 'steps.jsonl'}", *arguments],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        }
        return container, {}

    def pids(self, pod: str) -> list[int]:
        """The processes of a pod's training container, torchrun first."""
        return self.cluster.nodes.pids(self.namespace, pod, "train")

    def out_of_memory(self, pod: str, victim: int) -> float:
        """Kill a process of a pod's container as the kernel does; returns when."""
        self.cluster.nodes.run_out_of_memory(self.namespace, pod, "train", victim)
        return time.time()

    def fill_disk(self, pod: str) -> float:
        """Evict the pod in the words of a kubelet that has found it so; returns when."""
        struck = time.time()
        self._evict(pod, "uses_more_disk_than_its_limit")
        return struck

    @contextlib.contextmanager
    def short_of_disk(self, pod: str) -> Iterator[float]:
        """Evict the pod in the words of a kubelet whose node is short of disk; yields when."""
        struck = time.time()
        self._evict(pod, "is_evicted_by_a_node_short_of_disk")
        yield struck

    def _evict(self, pod: str, case: str) -> None:
        seen = json.loads((RECORDED / f"{case}.json").read_text())
        words = next(one["message"] for one in reversed(seen) if "message" in one)
        self.cluster.nodes.evict_pod(self.namespace, pod, words)

    def power_off(self, node: str) -> float:
        """Switch a node off; returns when."""
        struck = time.time()
        self.cluster.nodes.kill_node(node)
        return struck

    def power_on(self, node: str) -> None:
        """Switch it on again."""
        self.cluster.nodes.start_node(node)


def on_node(name: str) -> dict[str, Any]:
    """Fields of a pod that runs there and nowhere else."""
    return {"nodeSelector": {_HOST_NAME: name}}


def _volume(where: str) -> str:
    return where.strip("/").replace("/", "-")


def _command(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
