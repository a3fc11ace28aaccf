"""What end-to-end tests do with a job: apply it, follow its status, hurt it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devcluster.access import ClusterAccess
from devcluster.cluster import Cluster
from elasticjob.warm.boot.process import IDLE_OOM_SCORE
from tests import operator_account
from tests.cluster_job import ClusterJob

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
DIGITS = ROOT / "examples" / "digits" / "train.py"
PYTHON = Path(os.environ.get("ELASTICJOB_TEST_PYTHON", sys.executable))
"""The interpreter of pods, with torch and this package; operator and tests have their own. It is called
``python``, and ``torchrun`` is beside it."""
TORCHRUN = shlex.split(os.environ.get("ELASTICJOB_TEST_TORCHRUN", "torchrun"))
"""What is torchrun in pods. Both are set by ``python -m tests.matrix``."""
SLOWED = ("leases", "pods", "pods/*", "elasticjobs", "elasticjobs/*", "roles")
"""Writes that are delayed where "every write" is: those of the handler and of the operator."""
ENVIRONMENT = [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "TORCH_CPP_LOG_LEVEL", "value": "ERROR"}]
"""Of every pod that runs torch."""
OWN_ADDRESS = {"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
"""Of pods without an operator that have no network of their own: on the loopback interface they find none."""
DEADLINE = 120.0
"""Seconds after which a wait has hung; two torchruns start in about ten on two idle cores."""


def _path() -> list[dict[str, str]]:
    """PATH of pods whose interpreter is not the one that the node agent would give them."""
    if "ELASTICJOB_TEST_PYTHON" not in os.environ:
        return []
    return [{"name": "PATH", "value": f"{PYTHON.parent}:/usr/local/bin:/usr/bin:/bin"}]


class Operator:
    """The operator as a process of its own, serving one namespace with the rights that the chart gives. A
    context manager: in the end it is stopped, and its log is shown if the test fails."""

    def __init__(
        self,
        cluster: ClusterAccess,
        namespace: str,
        log: Path,
        kubeconfig: Path | None = None,
        flags: Sequence[str] = (),
        module: str = "elasticjob_operator",
    ) -> None:
        self._flags, self._module = flags, module
        self.kubeconfig = kubeconfig or operator_account.config(cluster)
        self._namespace = namespace
        self.log = log
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self._module, "--namespace", self._namespace, *self._flags],
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        print(self.log.read_text()[-8000:])

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(timeout=60)

    def restart(self) -> None:
        """Start a new process (the old one must be dead)."""
        assert self.process.poll() is not None
        self.process = self._start()

    def stop(self) -> None:
        """End it well."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
                raise


class JobRun(ClusterJob):
    """One ElasticJob of a test. ``folder`` is where its training script writes."""

    cluster: Cluster
    deadline = DEADLINE

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, name: str = "job") -> None:
        super().__init__(cluster, namespace, name)
        self.folder = folder
        self.steps_in_outage = 0

    def beside(self, name: str) -> JobRun:
        """Another job of the same test."""
        return JobRun(self.cluster, self.namespace, self.folder.parent / name, name)

    # -- making it -----------------------------------------------------------------------------------------

    def apply(
        self,
        command: Sequence[str] | None = None,
        annotations: dict[str, str] | None = None,
        pod: dict[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        env_from: str = "",
        **spec: Any,
    ) -> None:
        """Apply the job; ``command`` defaults to torchrun with the script that trains until ``stop()``.

        ``annotations`` and ``pod`` go into the template's metadata and spec, ``env`` and the ConfigMap
        ``env_from`` into the container.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        container = {
            **({"envFrom": [{"configMapRef": {"name": env_from}}]} if env_from else {}),
            "command": list(command or [*TORCHRUN, str(SCRIPTS / "steps.py"), str(self.folder)]),
            "env": [*ENVIRONMENT, *_path(), *({"name": k, "value": v} for k, v in (env or {}).items())],
        }
        self.create_job(container, annotations, pod, **spec)

    def stop(self) -> None:
        """Let the script come to its end."""
        (self.folder / "stop").touch()

    # -- following it --------------------------------------------------------------------------------------

    def get(self) -> dict[str, Any]:
        """The object."""
        found = super().get()
        assert found, f"there is no job {self.namespace}/{self.name}"
        return found

    def round(self) -> dict[str, Any]:
        """status.currentRound, {} before the first."""
        found: dict[str, Any] = self.status().get("currentRound", {})
        return found

    def rounds(self) -> list[dict[str, Any]]:
        """The history, oldest first, each round with why it was formed: what ended the one before."""
        status = self.status()
        history = list(reversed(status.get("roundHistory", [])))
        ends = [{}, *(entry.get("end", {}) for entry in history)]
        found = [{**end, **entry} for end, entry in zip(ends, history, strict=False)]
        if found and "message" in status["currentRound"]:
            found[-1]["message"] = status["currentRound"]["message"]  # with who took over whose rank
        return found

    def history(self) -> str:
        """A line for each round: why it was formed, and the milliseconds until its cause was noticed, until
        it was established, and until its first step; ``pytest -rP`` shows them of tests that pass."""
        if self.cluster.kubectl("-n", self.namespace, "get", "ej", self.name, check=False).returncode != 0:
            return ""
        keys = ("detectMilliseconds", "rendezvousMilliseconds", "firstStepMilliseconds")
        return "\n".join(
            f"round {r['number']}: {r['cause']}, {r.get('account', 'no account')}; "
            + ", ".join(f"{key.removesuffix('Milliseconds')} {r.get(key, '-')} ms" for key in keys)
            for r in self.rounds()
        )

    def training(self, number: int, members: int | None = None) -> dict[str, Any]:
        """Wait until this round, or a later one, trains (has made a step); returns status.currentRound."""

        def trains() -> dict[str, Any] | None:
            now = self.round()
            if now.get("number", 0) < number or "establishedTime" not in now or now["phase"] != "Active":
                return None
            if members is not None and now["members"] != members:
                return None
            return now if self.steps(now["number"]) else None

        found: dict[str, Any] = self.wait_for(
            trains, f"round {number} trains" + (f" with {members} members" if members else "")
        )
        return found

    def failed(self, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait until the job has Failed; returns the condition."""
        self.wait_for(lambda: self.condition("Failed").get("status") == "True", "Failed", seconds)
        return self.condition("Failed")

    def steps(self, number: int | None = None) -> list[dict[str, Any]]:
        """What the script has logged, of one round or of all."""
        found = []
        for path in sorted(self.folder.glob("steps*.jsonl")):
            for line in path.read_text().splitlines():
                if line.endswith("}"):
                    found.append(json.loads(line))
        return [s for s in found if number is None or s["round"] == number]

    def member(self, rank: int) -> dict[str, Any]:
        """The participant in status that has this rank."""
        found: dict[str, Any] = next(p for p in self.status()["participants"] if p.get("groupRank") == rank)
        return found

    def goes_on(self, number: int) -> None:
        """Wait until this round has made steps beyond those of now: no worker hangs."""
        before = len(self.steps(number))
        self.wait_for(lambda: len(self.steps(number)) > before + 3, f"round {number} goes on")

    def gone(self, pod: str) -> None:
        """Wait until the pod's object is gone, which for one on a lost node takes until its node is back."""
        self.wait_for(lambda: pod not in self.pods(), f"{pod} is gone")

    def log(self, pod: str) -> str:
        """What the pod's container has printed."""
        return Path(self.cluster.nodes.logs_path(self.namespace, pod)).read_text(errors="replace")

    # -- hurting it ----------------------------------------------------------------------------------------

    def kill_pod(self, pod: str) -> None:
        """SIGKILL to the container's main process, and with it to all of the container."""
        self.cluster.nodes.kill_container(self.namespace, pod, signal=signal.SIGKILL)

    def worker_pids(self, pod: str) -> list[int]:
        """The training processes of a pod, without torchrun itself and warm interpreters that wait."""
        found = []
        for pid in self.cluster.nodes.pids(self.namespace, pod):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == str(IDLE_OOM_SCORE):
                    continue
            except OSError:
                continue
            if any(w.endswith((b"steps.py", b"train.py")) for w in words) and not any(
                b"torchrun" in w or w == b"elasticjob.run" for w in words
            ):
                found.append(pid)
        return found

    def signal_agent(self, pod: str, number: int) -> None:
        """Send a signal to the pod's torchrun alone; its workers go on."""
        self.cluster.nodes.kill_container(self.namespace, pod, signal=number)

    def signal_all(self, pod: str, number: int) -> None:
        """Send a signal to every process of the pod."""
        for pid in self.cluster.nodes.pids(self.namespace, pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_worker(self, pod: str) -> None:
        """SIGKILL to one worker process."""
        pids = self.worker_pids(pod)
        assert pids, f"no worker process in {pod}"
        os.kill(pids[0], signal.SIGKILL)


def apart(job: JobRun) -> dict[str, Any]:
    """The part of a pod's spec that puts the pods of the job on nodes of their own."""
    term = {
        "labelSelector": {"matchLabels": {"elasticjob.dev/job-name": job.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def change(job: JobRun, **spec: object) -> None:
    """kubectl patch."""
    patch = json.dumps({"spec": spec})
    job.cluster.kubectl("-n", job.namespace, "patch", "elasticjob", job.name, "--type=merge", "-p", patch)
