"""The pods of these tests: objects with the job's label whose status the tests write as kubelet would.

The control plane is devcluster's, without nodes and without the controllers that would miss them. Agents are
processes beside the test; each plays one pod and reaches the API server as a process in that pod would, by a
token bound to the pod and with the rights that the operator has granted to it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devcluster.api import Response
from devcluster.cluster import Cluster
from devcluster.commands import DEFAULT_CONTROLLERS
from devcluster.wait import wait_for
from elasticjob.contract import names

NAMESPACE = "conformance"
NODE = "outside"
NEEDS_NODES = ("node-lifecycle-controller", "taint-eviction-controller")
CONTROLLERS = tuple(name for name in DEFAULT_CONTROLLERS if name not in NEEDS_NODES)
SETUP_SECONDS = 60.0

_MERGE_PATCH = "application/merge-patch+json"
_JOBS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
_RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
_addresses = itertools.count(1)


def prepare(cluster: Cluster) -> None:
    """Make the namespaces and the node that the pods are on."""
    api = cluster.api
    done(api.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}}))
    ready = [{"type": "Ready", "status": "True", "reason": "Conformance"}]
    path = f"/api/v1/nodes/{NODE}/status"
    done(api.request("PATCH", path, {"status": {"conditions": ready}}, content_type=_MERGE_PATCH))
    make_namespace(cluster, NAMESPACE)
    wait_for(lambda: api.is_ok(_JOBS), SETUP_SECONDS, f"{names.PLURAL} are served", interval=0.1)


def make_namespace(cluster: Cluster, name: str) -> None:
    """Make a namespace, and wait for its service account."""
    done(cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}}))
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    what = "the namespace has its service account"
    wait_for(lambda: cluster.api.is_ok(account), SETUP_SECONDS, what, interval=0.1)


@dataclass(frozen=True)
class Pod:
    """A pod that an agent plays. Each has a loopback address of its own."""

    name: str
    uid: str
    address: str
    environment: Mapping[str, str]


class Job:
    """One ElasticJob without template, and its pods."""

    namespace = NAMESPACE
    label = names.JOB_LABEL
    """Its objects have it, with its name."""

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        self.name = name
        self._folder = folder
        self._numbers = itertools.count()

    # -- the job -------------------------------------------------------------------------------------------

    def create(self, replicas: int, later: int | None = None, **spec: Any) -> None:
        """Apply it. ``later`` is what it is scaled to."""
        del later
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"replicas": replicas, "failurePolicy": {"application": {}}, **spec},
        }
        done(self._api.request("POST", _JOBS, body))

    def scale(self, replicas: int) -> None:
        """As ``kubectl scale``."""
        path = f"{_JOBS}/{self.name}/scale"
        body = {"spec": {"replicas": replicas}}
        done(self._api.request("PATCH", path, body, content_type=_MERGE_PATCH))

    def delete(self) -> None:
        """Delete it and its pods, at once: there is no kubelet to wait for."""
        self._api.request("DELETE", f"{_JOBS}/{self.name}", {"propagationPolicy": "Background"})
        self._delete_pods()

    def status(self) -> dict[str, Any]:
        """Its status; {} before the first, and while the API server doesn't answer."""
        answer = self._api.request("GET", f"{_JOBS}/{self.name}")
        found: dict[str, Any] = answer.json().get("status", {}) if answer.ok else {}
        return found

    def round(self) -> dict[str, Any]:
        """status.currentRound."""
        found: dict[str, Any] = self.status().get("currentRound", {})
        return found

    def causes(self) -> list[str]:
        """Why each round was formed, oldest first."""
        return [entry["cause"] for entry in reversed(self.status().get("roundHistory", []))]

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition, {} if it is not there."""
        found = (c for c in self.status().get("conditions", []) if c["type"] == kind)
        return next(found, {})

    def waiting(self) -> str:
        """What the next round waits for, "" if for nothing."""
        return str(self.condition("Training").get("message", ""))

    def is_left(self) -> bool:
        """Whether it is seen that the only agent has given up."""
        return bool(self.round().get("phase") == "Broken")

    def states(self) -> dict[str, str]:
        """Of each pod that has joined: its state."""
        return {entry["podName"]: entry["state"] for entry in self.status().get("participants", [])}

    def ranks(self) -> dict[str, int]:
        """Of each member's pod: its rank."""
        found = self.status().get("participants", [])
        return {entry["podName"]: entry["groupRank"] for entry in found if "groupRank" in entry}

    def round_is(self, number: int, members: int) -> bool:
        """Whether this round is established with so many members."""
        now = self.round()
        return (
            now.get("number") == number
            and now["phase"] == "Active"
            and "establishedTime" in now
            and now["members"] == members
        )

    def over(self, outcome: str) -> bool:
        """Whether it is ``Complete``, or has ``Failed``."""
        return bool(self.condition(outcome).get("status") == "True")

    # -- its pods ------------------------------------------------------------------------------------------

    def make_pod(self, slot: int | None = None) -> Pod:
        """A pod that runs. Its slot is the number of pods made before it, as that of the pods of a Job or
        StatefulSet, unless given: a replacement has the slot of the pod that it replaces."""
        number = next(self._numbers)
        name = f"{self.name}-{number}"
        slot = number if slot is None else slot
        labels = {self.label: self.name, names.SLOT_LABEL: str(slot)}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "nodeName": NODE,
                "restartPolicy": "Never",
                "containers": [{"name": "train", "image": "played-by-the-test"}],
            },
        }
        uid = str(done(self._api.request("POST", self._pods, body)).json()["metadata"]["uid"])
        address = f"127.1.{(count := next(_addresses)) // 250}.{count % 250 + 1}"
        self._report(name, _status("Running", {"running": {"startedAt": _timestamp()}}, address))
        return Pod(name, uid, address, self._environment(name, uid, slot))

    def report_end(self, pod: Pod, code: int) -> None:
        """What kubelet writes when the container has ended; ``code`` as the kernel says it, negative for a
        signal."""
        shell = code if code >= 0 else 128 - code
        state = {"terminated": {"exitCode": shell, "reason": "Error", "finishedAt": _timestamp()}}
        self._report(pod.name, _status("Failed" if shell else "Succeeded", state, pod.address))

    def report_restart(self, pod: Pod) -> None:
        """What kubelet writes when it has started the container of a pod anew (restartPolicy Always)."""
        state = {"running": {"startedAt": _timestamp()}}
        self._report(pod.name, _status("Running", state, pod.address, restarts=1))

    def granted(self, pods: list[Pod]) -> bool:
        """Whether the operator has made the Role that lets these pods write their Leases."""
        selector = f"?labelSelector={names.JOB_LABEL}%3D{self.name}"
        roles = self._items(f"{_RBAC}/roles{selector}")
        bindings = self._items(f"{_RBAC}/rolebindings{selector}")
        allowed = {name for role in roles for rule in role["rules"] for name in rule.get("resourceNames", ())}
        return bool(bindings) and allowed.issuperset(pod.name for pod in pods)

    def _items(self, path: str) -> list[dict[str, Any]]:
        answer = self._api.request("GET", path)
        found: list[dict[str, Any]] = answer.json()["items"] if answer.ok else []
        return found

    def _report(self, pod: str, status: Mapping[str, object]) -> None:
        path = f"{self._pods}/{pod}/status"
        done(self._api.request("PATCH", path, {"status": status}, content_type=_MERGE_PATCH))

    def _delete_pods(self) -> None:
        selector = f"?labelSelector={self.label.replace('/', '%2F')}%3D{self.name}"
        at_once = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        self._api.request("DELETE", self._pods + selector, at_once, timeout=SETUP_SECONDS)
        self._api.request("DELETE", self._leases + selector, timeout=SETUP_SECONDS)

    def _environment(self, pod: str, uid: str, slot: int) -> dict[str, str]:
        """What a process in the pod finds: the API server, its own name, its service account."""
        del slot  # the operator reads it
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default/token"
        body = {"spec": {"boundObjectRef": bound, "expirationSeconds": 7200}}
        token = done(self._api.request("POST", path, body)).json()["status"]["token"]
        folder = self._folder / pod
        folder.mkdir(parents=True)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(self._cluster.ca_file.read_bytes())
        (folder / "namespace").write_text(self.namespace)
        url = urlsplit(self._cluster.server)
        return {
            "KUBERNETES_SERVICE_HOST": str(url.hostname),
            "KUBERNETES_SERVICE_PORT": str(url.port),
            names.SERVICE_ACCOUNT_DIR_ENV: str(folder),
            names.POD_NAME_ENV: pod,
            names.POD_UID_ENV: uid,
        }


@dataclass(frozen=True)
class Request:
    """A request of one of the job's pods to the API server. A watch counts when it begins."""

    pod: str
    verb: str
    name: str
    code: int
    received: float

    @property
    def writes(self) -> bool:
        """Whether it asks to change something."""
        return self.verb in ("create", "update", "patch")


def requests_of(cluster: Cluster, job: Job, offset: int) -> Iterator[Request]:
    """The requests of the job's pods in the audit log, from this byte on."""
    user = f"system:serviceaccount:{job.namespace}:default"
    with cluster.audit_log.open() as log:
        log.seek(offset)
        for line in log:
            if not line.endswith("\n"):
                break
            event = json.loads(line)
            pods = event["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name", [])
            if event["user"]["username"] != user or not pods or not pods[0].startswith(f"{job.name}-"):
                continue
            stage = "ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"
            if event["stage"] == stage:
                yield Request(
                    pods[0],
                    event["verb"],
                    event.get("objectRef", {}).get("name", ""),
                    event["responseStatus"]["code"],
                    _received(event),
                )


def done(response: Response) -> Response:
    """The response, if it was a success. Raises RuntimeError with the server's words."""
    if not response.ok:
        raise RuntimeError(f"API server: {response.status} {response.text[:500]}")
    return response


def _status(phase: str, state: Mapping[str, object], address: str, restarts: int = 0) -> dict[str, object]:
    ready = phase == "Running"
    container = {
        "name": "train",
        "image": "played-by-the-test",
        "imageID": "",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
    }
    return {
        "phase": phase,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [container],
    }


def _timestamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _received(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(str(event["requestReceivedTimestamp"]).replace("Z", "+00:00")).timestamp()
