"""Node agents of the tests' own, and pods on their nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.nodeagent.client import NodeAgentClient, NodeAgentError
from devcluster.wait import wait_for

Object = dict[str, Any]
SECONDS = 90.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root on Linux")

AS_USER = """
import os, sys
from devcluster import linux

linux.enter_user_namespace(1000)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

SLOW_TERM = """
import signal, time
def term(*_):
    print("term")
    time.sleep({seconds})
    print("end")
    exit(0)
signal.signal(signal.SIGTERM, term)
print("up")
while True:
    time.sleep(0.1)
"""

BEAT = """
import time, urllib.request, os, ssl
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
url = f"https://{host}:{port}/livez"
context = ssl._create_unverified_context()
while True:
    try:
        urllib.request.urlopen(url, context=context, timeout=0.5)
        print("reached")
    except urllib.error.HTTPError:
        print("reached")
    except OSError:
        print("lost")
    time.sleep(0.1)
"""


class Agent:
    """A running node agent and pods on its nodes."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, as_user: bool = False) -> None:
        self.cluster = cluster
        self.nodes = [f"{name}-a", f"{name}-b"]
        images = folder / "images.json"
        images.write_text(json.dumps({"*": {"path": str(Path(sys.executable).parent)}}))
        self.state_dir = folder / "state"
        self.log = folder / "agent.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, *(("-c", AS_USER) if as_user else ())),
                    *("-m", "devcluster.nodeagent", "--kubeconfig", str(cluster.kubeconfig)),
                    *("--nodes", ",".join(self.nodes), "--state-dir", str(self.state_dir)),
                    *("--images", str(images), "--control", str(folder / "sock"), "--backoff=0.3"),
                ],
                stderr=log,
            )
        self.client = NodeAgentClient(folder / "sock")
        for node in self.nodes:
            self.wait_node(node, "True")

    def close(self) -> None:
        """End it in order; nothing of it is left."""
        self.process.terminate()
        self.process.wait(SECONDS)
        for node in self.nodes:
            self.cluster.kubectl("delete", "node", node, "--wait=false")

    def wait_node(self, node: str, ready: str) -> None:
        """Wait until the node's Ready condition says ``ready``."""

        def seen() -> bool:
            answer = self.cluster.api.request("GET", f"/api/v1/nodes/{node}")
            conditions = answer.json()["status"].get("conditions", []) if answer.ok else []
            return any(c["type"] == "Ready" and c["status"] == ready for c in conditions)

        wait_for(seen, SECONDS, lambda: f"{node} has Ready={ready}; {self.log.read_text()[-2000:]}")


class Pods:
    """Pods of one test, in its namespace, on one agent's nodes."""

    def __init__(self, agent: Agent, namespace: str) -> None:
        self.agent = agent
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def run(self, name: str, command: list[str], *, node: int = 0, **fields: Any) -> None:
        """Create a pod with one container ``main``; fields of the container are told by their names."""
        of_container = {
            "env",
            "envFrom",
            "lifecycle",
            "readinessProbe",
            "livenessProbe",
            "volumeMounts",
            "image",
            "resources",
            "terminationMessagePolicy",
        }
        own = {key: fields.pop(key) for key in list(fields) if key in of_container}
        main = {"name": "main", "image": "any", "command": command, **own}
        self.create(name, [main], node=node, **fields)

    def create(self, name: str, containers: list[Object], *, node: int = 0, **fields: Any) -> None:
        """Create a pod for the scheduler to bind to one of the agent's nodes."""
        metadata = {"name": name, **fields.pop("metadata", {})}
        selector = {"kubernetes.io/hostname": self.agent.nodes[node]}
        spec = {"restartPolicy": "Never", "nodeSelector": selector, "containers": containers, **fields}
        answer = self.agent.cluster.api.request("POST", self.path, {"metadata": metadata, "spec": spec})
        assert answer.ok, answer.text

    def get(self, name: str) -> Object | None:
        """The pod's object; None when it is gone."""
        answer = self.agent.cluster.api.request("GET", f"{self.path}/{name}")
        assert answer.ok or answer.status == 404, answer.text
        found: Object | None = answer.json() if answer.ok else None
        return found

    def wait(self, name: str, what: str, test: Callable[[Object], object]) -> Object:
        """Wait until the pod's status passes ``test``; the pod then."""

        def seen() -> Object | None:
            pod = self.get(name)
            assert pod is not None, f"{name} is gone"
            return pod if test(pod["status"]) else None

        def message() -> str:
            return f"{what}: {json.dumps(self.get(name))}\n{self.agent.log.read_text()[-2000:]}"

        return wait_for(seen, SECONDS, message)

    def wait_phase(self, name: str, phase: str) -> Object:
        """Wait until the pod has the phase."""
        return self.wait(name, f"{name} is {phase}", lambda status: status.get("phase") == phase)

    def wait_waiting(self, name: str, reason: str) -> str:
        """Wait until the container waits for ``reason``; the message."""
        pod = self.wait(
            name, f"waits with {reason}", lambda status: main_state(status, "waiting").get("reason") == reason
        )
        return str(main_state(pod["status"], "waiting")["message"])

    def log(self, name: str, container: str | None = None) -> str:
        """What the last run of a container has written."""
        try:
            return self.agent.client.logs_path(self.namespace, name, container).read_text()
        except (FileNotFoundError, NodeAgentError):
            return ""  # not started, or not even bound

    def wait_log(self, name: str, text: str) -> None:
        """Wait until the container has written ``text``."""
        wait_for(lambda: text in self.log(name), SECONDS, lambda: f"{text!r} in {self.log(name)!r}")

    def delete(self, name: str, **options: Any) -> None:
        """Ask for the pod's deletion."""
        answer = self.agent.cluster.api.request("DELETE", f"{self.path}/{name}", options)
        assert answer.ok, answer.text

    def wait_gone(self, name: str) -> None:
        """Wait until the object is gone."""
        wait_for(lambda: self.get(name) is None, SECONDS, lambda: f"{name} is gone: {self.get(name)}")


def main_state(status: Object, state: str) -> Object:
    """State ``state`` of the container ``main``; empty if it is in another one."""
    entries = [entry for entry in status.get("containerStatuses", []) if entry["name"] == "main"]
    found: Object = entries[0]["state"].get(state) or {} if entries else {}
    return found


def restarts(status: Object) -> int:
    return sum(entry["restartCount"] for entry in status.get("containerStatuses", []))


def is_ready(status: Object) -> bool:
    return all(entry["ready"] for entry in status.get("containerStatuses", [{"ready": False}]))


def python(code: str) -> list[str]:
    return ["python", "-u", "-c", code]
