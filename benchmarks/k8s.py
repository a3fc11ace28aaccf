"""The backend `k8s`: a real control plane, the real operator, pods that the benchmark plays.

The control plane is devcluster's, without nodes. The job has no template, so the benchmark creates its pods:
they are Pod objects on a Node object, and the benchmark writes into their status what kubelet would. Each
participant process plays one of them and reaches the API server as a process in that pod would: by a service
account token bound to the pod, with the rights that the operator has granted to it.

The benchmark reports the end of a killed participant's container at once. kubelet needs up to a second for
that (its relist period); apart from this, detection is part of the figures.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.backends import Seat
from benchmarks.cable import NEAR
from benchmarks.results import APISERVER, OPERATOR
from benchmarks.swarm_messages import SwarmSeat
from benchmarks.zygote import QUIET
from devcluster.api import ApiClient, Response
from devcluster.cluster import Cluster
from devcluster.commands import DEFAULT_CONTROLLERS, Options
from devcluster.wait import wait_for
from elasticjob.contract import names

_NAMESPACE = "bench"
NODE = "bench"
_CONTAINER = "train"
_USER = f"system:serviceaccount:{_NAMESPACE}:default"
_CRD = Path(__file__).parent.parent / "crds"
_TIMEOUT_SECONDS = 60.0
_REPORTS_SECONDS = 1.5
"""How long after a round its reports are still counted as that round's requests."""
_MERGE_PATCH = "application/merge-patch+json"
PODS = f"/api/v1/namespaces/{_NAMESPACE}/pods"
_JOBS = f"/apis/{names.API_VERSION}/namespaces/{_NAMESPACE}/{names.PLURAL}"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{_NAMESPACE}/leases"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{_NAMESPACE}"


class ControlPlane:
    """Control plane, operator, one namespace and one node; leaving the context ends it all.

    ``nodes`` more are devcluster's own, on which pods run as processes. ``gogc`` is the API server's.
    Without ``operator`` the operators are the caller's.
    """

    def __init__(self, nodes: int = 0, gogc: int | None = None, operator: bool = True) -> None:
        self._nodes = nodes
        self._gogc = gogc
        self._with_operator = operator
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ControlPlane:
        # The node's Lease is not renewed: the controllers that would call the node lost are left out.
        controllers = [name for name in DEFAULT_CONTROLLERS if name not in _NODE_CONTROLLERS]
        options = Options(controllers=controllers, server_names=[NEAR], apiserver_gogc=self._gogc)
        with contextlib.ExitStack() as stack:
            self._cluster = stack.enter_context(Cluster(nodes=self._nodes, options=options))
            self.api: ApiClient = self._cluster.api
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._operator_log = folder / "operator.log"
            self.service_accounts = folder / "pods"
            self._prepare()
            if self._with_operator:
                self.start_operator()
                stack.callback(lambda: _end(self._operator))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def cluster(self) -> Cluster:
        """The control plane."""
        return self._cluster

    @property
    def operator_pid(self) -> int:
        """The operator's process."""
        return self._operator.pid

    def start_operator(self) -> None:
        """Start it, also once more after `kill_operator`."""
        self._operator = self._start_operator()

    def kill_operator(self) -> None:
        """SIGKILL."""
        self._operator.kill()
        self._operator.wait()

    @property
    def audit_log(self) -> Path:
        """One JSON object per request."""
        return self._cluster.audit_log

    @property
    def version(self) -> str:
        """The API server's version."""
        return str(self.api.request("GET", "/version").json()["gitVersion"])

    def operator_log(self) -> str:
        """The operator's last lines, for a measurement that failed."""
        return self._operator_log.read_text(errors="replace")[-3000:]

    def pod_files(self, pod: str, token: str) -> Path:
        """A service account's folder as it is mounted into a pod."""
        folder = self.service_accounts / pod
        folder.mkdir(parents=True)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(self._cluster.ca_file.read_bytes())
        (folder / "namespace").write_text(_NAMESPACE)
        return folder

    def pod_environment(self) -> dict[str, str]:
        """The environment in which a process in a pod finds the API server."""
        url = urlsplit(self._cluster.server)
        return {"KUBERNETES_SERVICE_HOST": str(url.hostname), "KUBERNETES_SERVICE_PORT": str(url.port)}

    def _prepare(self) -> None:
        self._cluster.apply(_CRD)
        done(self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}}))
        done(self.api.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}}))
        ready = [{"type": "Ready", "status": "True", "reason": "Bench"}]
        path = f"/api/v1/nodes/{NODE}/status"
        done(self.api.request("PATCH", path, {"status": {"conditions": ready}}, content_type=_MERGE_PATCH))
        account = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts/default"
        wait_for(lambda: self.api.is_ok(account), _TIMEOUT_SECONDS, "the namespace has its service account")
        wait_for(lambda: self.api.is_ok(_JOBS), _TIMEOUT_SECONDS, f"{names.PLURAL} are served")

    def _start_operator(self) -> subprocess.Popen[bytes]:
        with self._operator_log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "elasticjob_operator"],
                env={**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


class K8sSession:
    """One ElasticJob and its pods."""

    notices = True

    def __init__(self, plane: ControlPlane, job: str, n: int, minimum: int, extra: int) -> None:
        self._plane = plane
        self._api = plane.api
        self.job = job
        self._n = n
        self._minimum = minimum
        self._pods = [f"{job}-{index}" for index in range(n + extra)]
        self._uids: dict[str, str] = {}
        self._audit_offset = 0

    def apply(self, spec: Mapping[str, object]) -> None:
        """Create the job alone."""
        done(self._api.request("POST", _JOBS, _job(self.job, spec)))

    def patch(self, spec: Mapping[str, object]) -> None:
        """Change the job."""
        path = f"{_JOBS}/{self.job}"
        done(self._api.request("PATCH", path, {"spec": spec}, content_type=_MERGE_PATCH))

    @contextlib.contextmanager
    def trains(
        self, command: Sequence[str], environment: Sequence[object], pod: Mapping[str, object], **spec: object
    ) -> Iterator[None]:
        """A job with a template, whose pods run on devcluster's nodes; gone with them at the end. ``pod`` is
        added to the pod's spec, ``spec`` to the job's."""
        quiet = [{"name": key, "value": value} for key, value in QUIET.items()]
        container = {"name": "train", "image": "torchrun", "command": command, "env": [*quiet, *environment]}
        template = {"spec": {"containers": [container], **pod}}
        head = {"replicas": self._n, "minReplicas": self._minimum, "handlerSource": "Image"}
        self.apply({**head, "template": template, **spec})
        try:
            yield
        finally:
            self.close()
            words = ("-n", _NAMESPACE, "delete", "pods", "-l", f"{names.JOB_LABEL}={self.job}", "--force")
            self._plane.cluster.kubectl(*words, check=False)

    def pod(self, index: int) -> str:
        """The name of the pod that a seat plays."""
        return self._pods[index]

    def open(self, spec: Mapping[str, object]) -> None:
        """Create job and pods, and wait until the operator has granted them their rights."""
        unlimited: dict[str, object] = {"application": {}}
        self.apply({"replicas": self._n, "minReplicas": self._minimum, "failurePolicy": unlimited, **spec})
        self.make_pods(names.JOB_LABEL)
        self.await_rights(self._pods)

    def await_rights(self, pods: Iterable[str]) -> None:
        """Wait until the operator has granted these pods their rights."""
        wait_for(
            lambda: self._granted(pods),
            _TIMEOUT_SECONDS,
            lambda: f"the operator's Role\n{self._plane.operator_log()}",
        )

    def make_pods(self, label: str) -> None:
        """Create them with this label, which names the job; they run. Requests count from now on."""
        self._audit_offset = self._plane.audit_log.stat().st_size
        for index in range(len(self._pods)):
            self.make_pod(index, label)

    def make_pod(self, index: int, label: str) -> None:
        """Create the pod of this seat; it runs."""
        pod = self._pods[index]
        answer = done(self._api.request("POST", PODS, _pod(pod, label, self.job, index)))
        self._uids[pod] = answer.json()["metadata"]["uid"]
        self._patch_status(pod, running())

    def delete_pods(self, label: str) -> None:
        """Without grace: there is no kubelet to wait for. Their Leases, too."""
        at_once = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        selector = f"?labelSelector={label.replace('/', '%2F')}%3D{self.job}"
        self._api.request("DELETE", PODS + selector, at_once, timeout=_TIMEOUT_SECONDS)
        self._api.request("DELETE", LEASES + selector, timeout=_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Delete what `open` made."""
        self._api.request("DELETE", f"{_JOBS}/{self.job}", {"propagationPolicy": "Background"})
        self.delete_pods(names.JOB_LABEL)

    def seat(self, index: int) -> Seat:
        """The place of the process that plays pod `index`."""
        pod = self._pods[index]
        folder = self._plane.pod_files(pod, self._token(pod))
        return Seat(
            backend=names.BACKEND,
            endpoint=f"{_NAMESPACE}/{self.job}",
            run_id="bench",
            min_nodes=1,
            max_nodes=self._n,
            environment={
                **self._plane.pod_environment(),
                names.POD_NAME_ENV: pod,
                names.POD_UID_ENV: self._uids[pod],
                names.SERVICE_ACCOUNT_DIR_ENV: str(folder),
            },
        )

    def swarm_seats(self) -> list[SwarmSeat]:
        """The places of coroutines that play the pods (`benchmarks.swarm`)."""
        cluster = self._plane.cluster
        where = (cluster.server, str(cluster.ca_file), _NAMESPACE, self.job)
        return [SwarmSeat(*where, pod, self._uids[pod], self._token(pod)) for pod in self._pods]

    def lost(self, index: int) -> None:
        """What kubelet writes when it sees that the container has been killed."""
        self._patch_status(self._pods[index], killed())

    def ended(self, index: int, code: int) -> None:
        """What kubelet writes when it sees that the container has ended by itself."""
        self._patch_status(self._pods[index], ended(code))

    def settled(self) -> None:
        """Wait until the leader has reported the round established; then the pause that c10d gets too."""
        wait_for(self._established, _TIMEOUT_SECONDS, "the leader reports the round established")
        time.sleep(1.0)

    def processes(self) -> Mapping[str, int]:
        """The operator serves this job alone; the API server has requests of devcluster's controllers too."""
        apiserver = self._plane.cluster.component("apiserver")
        return {OPERATOR: self._plane.operator_pid, APISERVER: apiserver.pid}

    def requests(self, since: float) -> int | None:
        """Requests in the audit log whose user is a pod of this job; a watch counts when it begins."""
        time.sleep(_REPORTS_SECONDS)
        return self.steady_requests(since, math.inf)["pods"]

    def steady_requests(self, since: float, until: float) -> dict[str, int]:
        """Requests of the job's pods and of the operator (which serves no other job) in that time, in the
        audit log; wall-clock seconds. A watch counts when it begins."""
        count = {"pods": 0, "operator": 0}
        with self._plane.audit_log.open() as log:
            log.seek(self._audit_offset)
            for line in log:
                event = audit_event(line)
                if event is None or not since <= _received(event) < until:
                    continue
                if event["stage"] != ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"):
                    continue
                if self._is_ours(event):
                    count["pods"] += 1
                elif event["user"]["username"] == "admin" and event.get("userAgent") != "devcluster":
                    count["operator"] += 1
        return count

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        user = event["user"]
        if user["username"] != _USER:
            return False
        pods = user.get("extra", {}).get("authentication.kubernetes.io/pod-name", [])
        return any(pod in self._uids for pod in pods)

    def _granted(self, pods: Iterable[str]) -> bool:
        selector = f"?labelSelector={names.JOB_LABEL}%3D{self.job}"
        roles = self._api.request("GET", f"{RBAC}/roles{selector}").json()["items"]
        bindings = self._api.request("GET", f"{RBAC}/rolebindings{selector}").json()["items"]
        granted = {name for role in roles for rule in role["rules"] for name in rule.get("resourceNames", ())}
        return bool(bindings) and granted.issuperset(pods)

    def _established(self) -> bool:
        round_ = (
            self._api.request("GET", f"{_JOBS}/{self.job}").json().get("status", {}).get("currentRound", {})
        )
        return round_.get("phase") == "Active" and "establishedTime" in round_

    def _token(self, pod: str) -> str:
        """A token bound to the pod, as kubelet requests it."""
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": self._uids[pod]}
        path = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts/default/token"
        answer = self._api.request(
            "POST", path, {"spec": {"boundObjectRef": bound, "expirationSeconds": 7200}}
        )
        return str(done(answer).json()["status"]["token"])

    def _patch_status(self, pod: str, status: Mapping[str, object]) -> None:
        path = f"{PODS}/{pod}/status"
        done(self._api.request("PATCH", path, {"status": status}, content_type=_MERGE_PATCH))


class K8s:
    """The backend; its variant only names how the measurement uses it."""

    name = "k8s"

    def __init__(self, plane: ControlPlane, variant: str = "") -> None:
        self.variant = variant
        self.plane = plane
        self._sessions = 0

    @contextlib.contextmanager
    def session(
        self, n: int, minimum: int, extra: int = 0, spec: Mapping[str, object] | None = None
    ) -> Iterator[K8sSession]:
        """A new job with `n + extra` pods that run. ``spec`` is added to the job's."""
        self._sessions += 1
        job = f"bench-{self.variant or 'plain'}-{self._sessions}"
        session = K8sSession(self.plane, job, n, minimum, extra)
        try:
            session.open(spec or {})
            yield session
        finally:
            session.close()


_NODE_CONTROLLERS = ("node-lifecycle-controller", "taint-eviction-controller")


def _job(name: str, spec: Mapping[str, object]) -> dict[str, object]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": spec,
    }


def _pod(name: str, label: str, job: str, slot: int) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": {label: job, names.SLOT_LABEL: str(slot)}},
        "spec": {
            "nodeName": NODE,
            "restartPolicy": "Never",
            "containers": [{"name": _CONTAINER, "image": "played-by-the-benchmark"}],
        },
    }


def running(address: str = "127.0.0.1") -> dict[str, object]:
    """The status of a pod whose container runs."""
    status = _status("Running", {"running": {"startedAt": _timestamp()}}, ready=True)
    return {**status, "podIP": address, "podIPs": [{"ip": address}]}


def killed() -> dict[str, object]:
    """What changes in it when the container is killed."""
    return ended(128 + signal.SIGKILL)


def ended(code: int) -> dict[str, object]:
    """What changes in it when the container ends with this exit code."""
    phase, reason = ("Failed", "Error") if code else ("Succeeded", "Completed")
    terminated = {"exitCode": code, "reason": reason, "finishedAt": _timestamp()}
    return _status(phase, {"terminated": terminated}, ready=False)


def _status(phase: str, state: Mapping[str, object], *, ready: bool) -> dict[str, object]:
    played = {"name": _CONTAINER, "image": "played-by-the-benchmark", "imageID": "", "restartCount": 0}
    return {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [{**played, "ready": ready, "state": state}],
    }


def _timestamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def audit_event(line: str) -> dict[str, Any] | None:
    """An event of the audit log; None for a line that is still being written."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event


def _received(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(str(event["requestReceivedTimestamp"]).replace("Z", "+00:00")).timestamp()


def done(response: Response) -> Response:
    """The response, if it was a success. Raises RuntimeError with the server's words."""
    if not response.ok:
        raise RuntimeError(f"API server: {response.status} {response.text[:500]}")
    return response


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
