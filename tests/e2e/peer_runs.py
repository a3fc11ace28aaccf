"""Runs without an operator: the examples, on nodes, as a user with ``edit`` applies them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from devcluster import kubeconfig
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.peers.round_lease import Identity
from elasticjob.peers.run import STATE_ANNOTATION, round_lease
from elasticjob.peers.settled import Settled
from tests.e2e.job import ENVIRONMENT, OWN_ADDRESS, ROOT, SCRIPTS

EXAMPLES = ROOT / "examples" / "without-an-operator"
ADMIN, EDITOR = "ada", "edith"
NAME = "digits"
DEADLINE = 240.0
"""Three pods load torch twice, for torchrun and for the script: on two busy cores a minute each time."""
END = 600.0
"""The example trains for half a minute on two idle cores."""


class PeerRun:
    """One run, by the example's own words. ``folder`` is its volume for checkpoints. A context manager: an
    admin of the namespace has applied rights.yaml inside of it, and all is gone after it."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        folder.mkdir()

    def kubectl(self, user: str, *words: str, input: str | None = None, check: bool = True) -> str:
        """What kubectl prints for this user of the namespace."""
        impersonated = (f"--as={user}",) if user else ()
        done = self.cluster.kubectl("-n", self.namespace, *impersonated, *words, input=input, check=check)
        return done.stdout + done.stderr

    def __enter__(self) -> PeerRun:
        self.prepare()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def prepare(self) -> None:
        """An admin of the namespace applies rights.yaml; there is one with ``edit``, too."""
        self.kubectl("", "create", "serviceaccount", EDITOR)
        for user, role in ((ADMIN, "admin"), (EDITOR, "edit")):
            account = f"--serviceaccount={self.namespace}:{user}"
            self.kubectl(
                "", "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", account
            )
        self.kubectl(ADMIN, "apply", "-f", str(EXAMPLES / "rights.yaml"))

    def remove(self) -> None:
        """Delete all, with the pods."""
        for kind in ("jobs", "statefulsets", "leases"):
            self.kubectl("", "delete", kind, "--all", "--timeout=60s", check=False)
        self.kubectl("", "delete", "pods", "--all", "--force", "--timeout=60s", check=False)

    # -- making it -----------------------------------------------------------------------------------------

    def apply(self, example: str) -> None:
        """Apply the example as the editor, with the script that it names."""
        for manifest in self._manifests(example):
            self._apply(self._placed(manifest))

    def apply_until_stopped(self, leave_out: str = "") -> None:
        """The Indexed Job with a script that trains until ``stop()``; ``leave_out`` is a word of the
        command."""
        for manifest in map(self._placed, self._manifests("job.yaml")):
            if manifest["kind"] == "Job":
                container = manifest["spec"]["template"]["spec"]["containers"][0]
                words = [word for word in container["command"][:-1] if word != leave_out]
                assert len(words) == len(container["command"]) - 1 - bool(leave_out)
                container["command"] = [*words, str(SCRIPTS / "others_steps.py"), str(self.folder)]
                del container["args"]
            self._apply(manifest)

    def stop(self) -> None:
        """Let that script come to its end."""
        (self.folder / "stop").touch()

    def _apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl(EDITOR, "apply", "-f", "-", input=json.dumps(manifest))

    def _manifests(self, example: str) -> list[dict[str, Any]]:
        folder = EXAMPLES if example == "job.yaml" else EXAMPLES / "files"
        rendered = self.cluster.kubectl("kustomize", str(folder)).stdout
        more = "" if example == "job.yaml" else (EXAMPLES / example).read_text()
        found = [*yaml.safe_load_all(rendered), *yaml.safe_load_all(more)]
        return [child_job(one) if one["kind"] == "JobSet" else one for one in found]

    def _placed(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Nothing here provides storage for a claim: a folder of this machine is in its place."""
        if "template" not in manifest.get("spec", {}):
            return manifest
        spec = manifest["spec"]["template"]["spec"]
        (volume,) = (one for one in spec["volumes"] if "persistentVolumeClaim" in one)
        del volume["persistentVolumeClaim"]
        volume["hostPath"] = {"path": str(self.folder)}
        (container,) = spec["containers"]
        container["env"] += [*ENVIRONMENT, OWN_ADDRESS]
        return manifest

    def leases(self, name: str = "", query: str = "") -> str:
        """A path in the API."""
        base = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return base + (f"/{name}" if name else "") + (f"?{query}" if query else "")

    def outage(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """The API server is away for so long."""
        server = self.cluster.component("apiserver")
        server.kill()
        try:
            meanwhile()
            time.sleep(seconds)
        finally:
            server.start()
            for name in (
                "scheduler",
                "controller-manager",
            ):  # their own pauses of up to a minute are none of ours
                self.cluster.component(name).restart()

    # -- following it --------------------------------------------------------------------------------------

    def settled(self) -> Settled | None:
        """What the round Lease says."""
        lease = self.cluster.read(self.leases(round_lease(NAME)))
        if not lease:
            return None
        annotations = lease["metadata"]["annotations"]
        return Settled.parse(annotations["elasticjob.dev/round"], annotations[STATE_ANNOTATION])

    def coordinator(self) -> str:
        """The pod that the round Lease names as its holder."""
        holder = self.cluster.read(self.leases(round_lease(NAME)))["spec"]["holderIdentity"]
        return Identity.parse(holder).pod

    def steps(self, number: int) -> list[dict[str, Any]]:
        """What the script has logged of this round."""
        lines = [line for path in self.folder.rglob("steps*.jsonl") for line in path.read_text().splitlines()]
        return [
            step for line in lines if line.endswith("}") and (step := json.loads(line))["round"] == number
        ]

    def trains(self, number: int, members: int | None = None) -> Settled:
        """Wait until this round, or a later one, trains; if ``members``, with so many."""

        def found() -> Settled | None:
            settled = self.settled()
            r = settled.state if settled is not None else None
            if r is None or not r.active or r.number < number or members not in (None, len(r.members)):
                return None
            return settled if self.steps(r.number) else None

        with_members = f" with {members} members" if members else ""
        return wait_for(found, DEADLINE, f"round {number} trains{with_members}", interval=0.2)

    def goes_on(self, number: int) -> None:
        """Wait until this round has made steps beyond those of now."""
        before = len(self.steps(number))
        wait_for(lambda: len(self.steps(number)) > before + 3, DEADLINE, f"round {number} goes on")

    def closes(self) -> Settled:
        """Wait until the run is over."""
        return wait_for(
            lambda: s if (s := self.settled()) is not None and s.closed else None, END, "it is over"
        )

    def job_is(self, condition: str, name: str = NAME) -> None:
        """Wait for a condition of a Job."""

        def said() -> bool:
            job = self.cluster.read(f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}")
            conditions = job["status"].get("conditions", [])
            return any(c["type"] == condition and c["status"] == "True" for c in conditions)

        wait_for(said, DEADLINE, f"the Job is {condition}", interval=0.2)

    def log(self, pod: str) -> str:
        """What the pod's container has printed."""
        return Path(self.cluster.nodes.logs_path(self.namespace, pod)).read_text(errors="replace")

    def program(self, *words: str) -> str:
        """What ``elasticjob`` prints of the namespace for one with ``edit``."""
        token = self.kubectl("", "create", "token", EDITOR).strip()
        file = kubeconfig.write(
            self.folder.with_suffix(".kubeconfig"), self.cluster.server, self.cluster.ca_file, token
        )
        done = subprocess.run(
            [sys.executable, "-m", "elasticjob_client", *words, "-n", self.namespace],
            env={**os.environ, "KUBECONFIG": str(file), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def child_job(jobset: dict[str, Any]) -> dict[str, Any]:
    """The one Job that JobSet's controller makes of this JobSet, as far as torchruns meet it: the name, and
    the labels on Job and pods. (The controller itself is not run here.)"""
    (only,) = jobset["spec"]["replicatedJobs"]
    template = only["template"]
    labels = {"jobset.sigs.k8s.io/jobset-uid": str(uuid.uuid4()), "jobset.sigs.k8s.io/job-index": "0"}
    metadata = template["spec"]["template"]["metadata"]
    metadata["labels"] = {**metadata["labels"], **labels}
    name = f"{jobset['metadata']['name']}-{only['name']}-0"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": template["spec"],
    }
