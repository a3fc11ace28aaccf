"""Operators as processes that compete for the lead, and the job that they act on.

They have one service account, as the chart gives them, and tokens that are bound to pods of their own (whose
objects are all there is of them), so that the audit log says which operator has written what.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from devcluster import kubeconfig
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.ports import PortClaims
from devcluster.wait import wait_for
from tests import operator_account

FREEZING = "tests.integration.freezing_operator"
SHORT = ("3s", "2s", "400ms")
DEADLINE = 60.0
WRITES = ("create", "update", "patch", "delete", "deletecollection")
NAME = "elasticjob-operator"
"""Of the service account, of the election's Lease, and of the policy."""
POD_CLAIM = "authentication.kubernetes.io/pod-name"


class Operator:
    """One process, with the token of a pod of its own."""

    def __init__(self, scene: Scene, name: str, timing: Sequence[str], server: str | None = None) -> None:
        self.name = name
        self._scene = scene
        self._timing = timing
        cluster = scene.cluster
        self._pod()
        token = cluster.kubectl(
            *("-n", scene.namespace, "create", "token", NAME),
            *("--bound-object-kind=Pod", f"--bound-object-name={name}"),
        ).stdout.strip()
        self._config = kubeconfig.write(scene.folder / name, server or cluster.server, cluster.ca_file, token)
        self._port = scene.ports.take()
        self._http = ApiClient(f"http://127.0.0.1:{self._port}")
        self.freeze_when = scene.folder / f"freeze-{name}"
        self.log = scene.folder / f"{name}.log"
        self.log.touch()
        self.process = self._start()

    def _pod(self) -> None:
        container = {"name": "operator", "image": "none"}
        spec = {"serviceAccountName": NAME, "containers": [container], "nodeSelector": {"no": "node"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": spec}
        self._scene.cluster.kubectl("-n", self._scene.namespace, "apply", "-f", "-", input=json.dumps(pod))

    def _start(self) -> subprocess.Popen[bytes]:
        namespace = self._scene.namespace
        names = ("lease-duration", "renew-deadline", "retry-period")
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", FREEZING, "--namespace", namespace),
                    *("--leader-elect", f"--leader-elect-resource-namespace={namespace}"),
                    *(
                        f"--leader-elect-{name}={value}"
                        for name, value in zip(names, self._timing, strict=False)
                    ),
                    f"--health-probe-bind-address=127.0.0.1:{self._port}",
                ],
                env={
                    **os.environ,
                    "KUBECONFIG": str(self._config),
                    "POD_NAME": self.name,
                    "FREEZE_WHEN": str(self.freeze_when),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def restart(self) -> None:
        assert self.process.poll() is not None
        self.process = self._start()

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and answer; status 0 while there is none."""
        answer = self._http.request("GET", path, headers={"Connection": "close"}, timeout=5.0)
        return answer.status, answer.json() if answer.status else {}

    def leads(self) -> bool:
        election = self.probe("/livez")[1].get("election", {})
        return election.get("leading") is True and election["leader"].startswith(f"{self.name}_")

    def stands_by(self, leader: Operator) -> bool:
        """Whether it knows that another leads; it is alive and ready as that one is."""
        status, answer = self.probe("/readyz")
        election = answer.get("election", {"leading": True})
        others = str(election.get("leader", "")).startswith(f"{leader.name}_")
        return status == 200 and not election["leading"] and others

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def frozen(self) -> bool:
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=60)


class Scene:
    """A namespace with a job whose pods wait for a node that does not come, so that only operators act."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.operators: list[Operator] = []
        self.ports = PortClaims()
        self.user = f"system:serviceaccount:{namespace}:{NAME}"
        operator_account.bind(cluster, namespace, NAME)

    def start(self, name: str, timing: Sequence[str] = SHORT, server: str | None = None) -> Operator:
        operator = Operator(self, name, timing, server)
        self.operators.append(operator)
        return operator

    def pair(self, timing: Sequence[str] = SHORT, server: str | None = None) -> tuple[Operator, Operator]:
        """Two of them, the first of which leads."""
        first = self.start("first", timing, server)
        wait_for(first.leads, DEADLINE, "the first leads", interval=0.1)
        second = self.start("second", timing)
        wait_for(lambda: second.stands_by(first), DEADLINE, "the second stands by", interval=0.1)
        return first, second

    def close(self) -> None:
        for operator in self.operators:
            operator.end()
            print(f"--- {operator.name}\n{operator.log.read_text()[-4000:]}")
        self.ports.release()

    def apply(self, replicas: int) -> None:
        container = {"name": "main", "image": "none", "command": ["torchrun", "--nnodes=7", "train.py"]}
        template = {"spec": {"containers": [container], "nodeSelector": {"no": "node"}}}
        job = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "job", "namespace": self.namespace},
            "spec": {"replicas": replicas, "handlerSource": "Image", "template": template},
        }
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(job))

    def get(self, what: str) -> list[dict[str, Any]]:
        answer = self.cluster.kubectl("-n", self.namespace, "get", what, "-o", "json")
        items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
        return items

    def core(self, what: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.cluster.read(f"/api/v1/namespaces/{self.namespace}/{what}")[
            "items"
        ]
        return items

    def pods(self) -> set[str]:
        """The job's, that the scheduler has judged: it won't write to them any more."""
        judged = [pod["metadata"] for pod in self.core("pods") if pod["status"].get("conditions")]
        return {m["name"] for m in judged if "deletionTimestamp" not in m and m["name"].startswith("job-")}

    def has_pods(self, count: int) -> None:
        wait_for(
            lambda: len(self.pods()) == count,
            DEADLINE,
            lambda: f"{count} pods, there are {self.pods()}",
            interval=0.1,
        )

    def has_published(self, count: int) -> None:
        """The round Lease says how many replicas are awaited. Its sentence is written every ten seconds at
        most: a change and its reverse within that time are no write."""
        awaited = f"of {count} replicas"
        wait_for(lambda: awaited in str(self._lease("job-round")), DEADLINE, f"{awaited!r} in the Lease")

    def has_told(self) -> None:
        """There is the Event about the flag: the next time it is said is a count of the same."""
        wait_for(
            lambda: any(event["reason"] == "FlagOverridesEnvironment" for event in self.core("events")),
            DEADLINE,
            "the Event about the flag",
            interval=0.1,
        )

    def everything(self) -> dict[str, str]:
        """The version of all that an operator writes, but for the Lease of the election."""
        found = {}
        for item in self.get("pods,elasticjobs,leases,roles,rolebindings,serviceaccounts,events"):
            # An Event of the scheduler's has no source, but this.
            meta, theirs = item["metadata"], item.get("reportingComponent")
            if (item["kind"], meta["name"]) != ("Lease", NAME) and theirs in (None, NAME):
                found[f"{item['kind'].lower()}s/{meta['name']}"] = meta["resourceVersion"]
        return found

    def changed(self, before: dict[str, str]) -> set[str]:
        """What is there, or not any more, or otherwise than before; named as in ``writes``."""
        return {name for name, _ in self.everything().items() ^ before.items()}

    def writes(self, operator: Operator, election: bool = False) -> list[tuple[str, str, int]]:
        """What it has asked the API server to write: verb, object, answer. Without the election's Lease, and
        without dry runs."""
        found = []
        for line in self.cluster.audit_log.read_text().splitlines():
            if self.user not in line:
                continue
            event = json.loads(line)
            who = event["user"].get("extra", {}).get(POD_CLAIM)
            if who != [operator.name] or event["verb"] not in WRITES or "dryRun=All" in event["requestURI"]:
                continue
            about = event["objectRef"]
            name = "/".join(about[k] for k in ("resource", "name") if about.get(k))
            mine = about["resource"] == "leases" and about.get("name") in (NAME, None)
            if mine == election:
                found.append((event["verb"], name, int(event.get("responseStatus", {}).get("code", 0))))
        return found

    def lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self._lease(NAME)["spec"]
        return spec

    def _lease(self, name: str) -> dict[str, Any]:
        return self.cluster.read(f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{name}")

    def renewals(self, count: int) -> None:
        """Let the present leader go on for this long."""
        for _ in range(count):
            before = self.lease()["renewTime"]
            wait_for(lambda: self.lease()["renewTime"] != before, DEADLINE, "a renewal", interval=0.1)  # noqa: B023
