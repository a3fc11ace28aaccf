"""The node agent under the real control plane: what a pod sees, what its status says, and every fault.

Two agents of the tests' own play nodes beside those of the session's cluster: one as it comes (with
namespaces if the tests run as root), one without namespaces as for a user who is not root.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from devcluster.cluster import Cluster
from devcluster.nodeagent.client import NodeAgentClient, NodeAgentError
from devcluster.nodeagent.runtime import MARKER
from devcluster.wait import wait_for

pytestmark = pytest.mark.devcluster

Object = dict[str, Any]
_SECONDS = 90.0
_IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not _IS_ROOT, reason="needs root on Linux")


class Agent:
    """A running node agent and pods on its nodes."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, *options: str) -> None:
        self.cluster = cluster
        self.nodes = [f"{name}-a", f"{name}-b"]
        images = folder / "images.json"
        images.write_text(json.dumps({"*": {"path": str(Path(sys.executable).parent)}}))
        self.state_dir = folder / "state"
        self.log = folder / "agent.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "devcluster.nodeagent", "--kubeconfig", str(cluster.kubeconfig)),
                    *("--nodes", ",".join(self.nodes), "--state-dir", str(self.state_dir)),
                    *("--images", str(images), "--control", str(folder / "sock"), *options),
                ],
                stderr=log,
            )
        self.client = NodeAgentClient(folder / "sock")
        for node in self.nodes:
            self.wait_node(node, "True")

    def close(self) -> None:
        """End it in order; nothing of it is left."""
        self.process.terminate()
        self.process.wait(_SECONDS)
        for node in self.nodes:
            self.cluster.kubectl("delete", "node", node, "--wait=false")

    def wait_node(self, node: str, ready: str) -> None:
        """Wait until the node's Ready condition says ``ready``."""

        def seen() -> bool:
            answer = self.cluster.api.request("GET", f"/api/v1/nodes/{node}")
            conditions = answer.json()["status"].get("conditions", []) if answer.ok else []
            return any(c["type"] == "Ready" and c["status"] == ready for c in conditions)

        wait_for(seen, _SECONDS, lambda: f"{node} has Ready={ready}; {self.log.read_text()[-2000:]}")


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

        return wait_for(seen, _SECONDS, message)

    def wait_phase(self, name: str, phase: str) -> Object:
        """Wait until the pod has the phase."""
        return self.wait(name, f"{name} is {phase}", lambda status: status.get("phase") == phase)

    def wait_waiting(self, name: str, reason: str) -> str:
        """Wait until the container waits for ``reason``; the message."""
        pod = self.wait(
            name, f"waits with {reason}", lambda status: _main(status, "waiting").get("reason") == reason
        )
        return str(_main(pod["status"], "waiting")["message"])

    def log(self, name: str, container: str | None = None) -> str:
        """What the last run of a container has written."""
        try:
            return self.agent.client.logs_path(self.namespace, name, container).read_text()
        except (FileNotFoundError, NodeAgentError):
            return ""  # not started, or not even bound

    def wait_log(self, name: str, text: str) -> None:
        """Wait until the container has written ``text``."""
        wait_for(lambda: text in self.log(name), _SECONDS, lambda: f"{text!r} in {self.log(name)!r}")

    def delete(self, name: str, **options: Any) -> None:
        """Ask for the pod's deletion."""
        answer = self.agent.cluster.api.request("DELETE", f"{self.path}/{name}", options)
        assert answer.ok, answer.text

    def wait_gone(self, name: str) -> None:
        """Wait until the object is gone."""
        wait_for(lambda: self.get(name) is None, _SECONDS, lambda: f"{name} is gone: {self.get(name)}")


def _main(status: Object, state: str) -> Object:
    """State ``state`` of the container ``main``; empty if it is in another one."""
    entries = [entry for entry in status.get("containerStatuses", []) if entry["name"] == "main"]
    found: Object = entries[0]["state"].get(state) or {} if entries else {}
    return found


def _restarts(status: Object) -> int:
    return sum(entry["restartCount"] for entry in status.get("containerStatuses", []))


def _is_ready(status: Object) -> bool:
    return all(entry["ready"] for entry in status.get("containerStatuses", [{"ready": False}]))


def _python(code: str) -> list[str]:
    return ["python", "-u", "-c", code]


@pytest.fixture(scope="module", params=["plain", pytest.param("rootless", marks=pytest.mark.slow)])
def agent(request: pytest.FixtureRequest, devcluster: Cluster, tmp_path_factory: Any) -> Iterator[Agent]:
    """An agent with the mode of this machine, and one that does without namespaces."""
    options = ["--rootless"] if request.param == "rootless" else []
    folder = tmp_path_factory.mktemp(request.param)
    running = Agent(devcluster, folder, request.param, "--backoff=0.3", *options)
    with contextlib.closing(running):
        yield running


@pytest.fixture
def pods(agent: Agent, namespace: str) -> Pods:
    """Pods in a namespace of the test's own."""
    return Pods(agent, namespace)


# What a pod sees, what its status says


def test_exit_code_is_in_the_status(pods: Pods) -> None:
    pods.run("good", ["sh", "-c", "echo out; echo err >&2"])
    pods.run("bad", ["sh", "-c", "exit 3"], node=1)
    good = pods.wait_phase("good", "Succeeded")
    assert _main(good["status"], "terminated")["reason"] == "Completed"
    assert pods.log("good") == "out\nerr\n"
    ended = _main(pods.wait_phase("bad", "Failed")["status"], "terminated")
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert ended["containerID"].startswith("devcluster://")


def test_death_by_signal_is_128_and_the_signal(pods: Pods) -> None:
    pods.run("victim", ["sleep", "1000"])
    pods.wait_phase("victim", "Running")
    pods.agent.client.kill_container(pods.namespace, "victim", signal=signal.SIGKILL)
    assert _main(pods.wait_phase("victim", "Failed")["status"], "terminated")["exitCode"] == 137


def test_command_that_does_not_exist(pods: Pods) -> None:
    pods.run("typo", ["no-such-program"])
    ended = _main(pods.wait_phase("typo", "Failed")["status"], "terminated")
    assert ended["reason"] == "StartError"
    assert "no-such-program" in ended["message"]


def test_environment_and_downward_api(pods: Pods) -> None:
    api, path = pods.agent.cluster.api, f"/api/v1/namespaces/{pods.namespace}/configmaps"
    assert api.request("POST", path, {"metadata": {"name": "settings"}, "data": {"COLOUR": "red"}}).ok
    fields = {
        "NAME": "metadata.name",
        "NAMESPACE": "metadata.namespace",
        "UID_": "metadata.uid",
        "LABEL": "metadata.labels['app']",
        "NOTE": "metadata.annotations['note']",
        "NODE": "spec.nodeName",
        "ACCOUNT": "spec.serviceAccountName",
        "IP": "status.podIP",
        "IPS": "status.podIPs",
        "HOST": "status.hostIP",
    }
    downward = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()]
    code = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    main = {
        "name": "main",
        "image": "any",
        "command": [*_python(code), "$(NAME)", "$$(NAME)", "$(UNKNOWN)"],
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "MY_"}],
        "env": [
            *downward,
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "GREETING", "value": "hello $(NAME)"},
        ],
    }
    pods.create("env", [main], metadata={"labels": {"app": "x"}, "annotations": {"note": "y z"}})
    pod = pods.wait_phase("env", "Succeeded")
    env, arguments = json.loads(pods.log("env"))
    expected = {
        "MY_COLOUR": "red",
        "NAME": "env",
        "NAMESPACE": pods.namespace,
        "UID_": pod["metadata"]["uid"],
        "LABEL": "x",
        "NOTE": "y z",
        "NODE": pods.agent.nodes[0],
        "ACCOUNT": "default",
        "IP": pod["status"]["podIP"],
        "IPS": pod["status"]["podIP"],
        "HOST": pod["status"]["hostIP"],
        "CPUS": "2",
        "GREETING": "hello env",
        "HOSTNAME": "env",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert arguments == ["env", "$(NAME)", "$(UNKNOWN)"]
    assert "PYTEST_CURRENT_TEST" not in env, "the agent's own environment is not the pod's"


_REVIEW = """
import json, os, ssl, urllib.request
folder = os.environ.get("ELASTICJOB_SERVICE_ACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount")
token = open(folder + "/token").read()
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
request = urllib.request.Request(
    f"https://{host}:{port}/apis/authentication.k8s.io/v1/selfsubjectreviews",
    data=b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}',
    headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"},
)
context = ssl.create_default_context(cafile=folder + "/ca.crt")
answer = json.load(urllib.request.urlopen(request, context=context, timeout=10))
print(json.dumps([open(folder + "/namespace").read(), answer["status"]["userInfo"]]))
"""


def test_token_is_bound_to_the_pod_and_valid(pods: Pods) -> None:
    pods.run("who", _python(_REVIEW))
    pod = pods.wait_phase("who", "Succeeded")
    namespace, user = json.loads(pods.log("who"))
    assert namespace == pods.namespace
    assert user["username"] == f"system:serviceaccount:{pods.namespace}:default"
    assert user["extra"]["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]


def test_volumes(pods: Pods, tmp_path: Path) -> None:
    """ConfigMap, Secret, downward API and an emptyDir that containers share; nothing is left on the host."""
    api, base = pods.agent.cluster.api, f"/api/v1/namespaces/{pods.namespace}"
    config_map = {"metadata": {"name": "files"}, "data": {"a.txt": "A", "b.txt": "B"}}
    assert api.request("POST", f"{base}/configmaps", config_map).ok
    assert api.request("POST", f"{base}/secrets", {"metadata": {"name": "key"}, "stringData": {"k": "S"}}).ok
    root = tmp_path / "mounts"
    label = {"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}}
    volumes: dict[str, Object] = {
        "config": {"configMap": {"name": "files", "items": [{"key": "a.txt", "path": "deep/a"}]}},
        "secret": {"secret": {"secretName": "key"}},
        "labels": {"downwardAPI": {"items": [label]}},
        "scratch": {"emptyDir": {}},
    }
    mounts = [{"name": name, "mountPath": f"{root}/{name}"} for name in volumes]
    write = {"name": "write", "image": "any", "command": ["sh", "-c", f"echo from-init > {root}/scratch/x"]}
    read = f"cd {root}; cat config/deep/a secret/k labels/app scratch/x"
    pods.run(
        "volumes",
        ["sh", "-c", read],
        metadata={"labels": {"app": "L"}},
        volumes=[{"name": name, **source} for name, source in volumes.items()],
        volumeMounts=mounts,
        initContainers=[write | {"volumeMounts": mounts}],
    )
    pods.wait_phase("volumes", "Succeeded")
    assert pods.log("volumes") == "ASLfrom-init\n"
    pods.delete("volumes")
    pods.wait_gone("volumes")
    assert not any(root.glob("*/*")), "the volumes are gone"


@needs_root
def test_mount_points_that_do_not_exist_are_the_containers_own(pods: Pods) -> None:
    if "rootless" in pods.agent.nodes[0]:
        pytest.skip("mounts need namespaces")
    volumes = [{"name": "d", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "d", "mountPath": f"/{pods.namespace}/deep"}, {"name": "m", "mountPath": "/dev/shm"}]
    script = (
        f"touch /{pods.namespace}/deep/x /dev/shm/x; ls /{pods.namespace}/deep /dev/shm; ls /usr/bin | wc -l"
    )
    pods.run("mounts", ["sh", "-c", script], volumes=volumes, volumeMounts=mounts)
    pods.wait_phase("mounts", "Succeeded")
    *listing, programs = pods.log("mounts").split()
    assert listing == ["/dev/shm:", "x", f"/{pods.namespace}/deep:", "x"]
    assert int(programs) == len(os.listdir("/usr/bin")), "the rest of the file system is as it was"
    assert not Path(f"/{pods.namespace}").exists()


def test_missing_config_map_holds_the_pod(pods: Pods) -> None:
    pods.run("waits", ["true"], envFrom=[{"configMapRef": {"name": "later"}}])
    assert "'later'" in pods.wait_waiting("waits", "CreateContainerConfigError")
    path = f"/api/v1/namespaces/{pods.namespace}/configmaps"
    assert pods.agent.cluster.api.request("POST", path, {"metadata": {"name": "later"}}).ok
    pods.wait_phase("waits", "Succeeded")


def test_readiness_probe(pods: Pods) -> None:
    probe = {"periodSeconds": 1, "exec": {"command": ["test", "-e", "ready"]}}
    pods.run("probed", ["sh", "-c", "sleep 1.5; touch ready; exec sleep 1000"], readinessProbe=probe)
    running = pods.wait_phase("probed", "Running")
    assert not running["status"]["containerStatuses"][0]["ready"]
    ready = pods.wait("probed", "is ready", _is_ready)
    assert {c["type"]: c["status"] for c in ready["status"]["conditions"]}["Ready"] == "True"
    pods.delete("probed", gracePeriodSeconds=0)


# Order and restarts


def test_init_containers_run_in_order_before_the_others(pods: Pods) -> None:
    init = [
        {"name": name, "image": "any", "command": ["sh", "-c", "date +%s.%N; sleep 0.2; date +%s.%N"]}
        for name in ("one", "two")
    ]
    pods.run("ordered", ["date", "+%s.%N"], initContainers=init)
    pods.wait_phase("ordered", "Succeeded")
    times = [float(t) for c in ("one", "two", "main") for t in pods.log("ordered", c).split()]
    assert times == sorted(times)
    assert len(times) == 5


def test_init_container_that_fails_fails_the_pod(pods: Pods) -> None:
    init = [{"name": "broken", "image": "any", "command": ["false"]}]
    pods.run("stopped", ["true"], initContainers=init)
    status = pods.wait_phase("stopped", "Failed")["status"]
    assert _main(status, "waiting") == {"reason": "PodInitializing"}


def test_sidecar_starts_before_and_ends_after_the_others(pods: Pods) -> None:
    term = "import signal, time\nsignal.signal(15, lambda *_: exit(0))\nprint('up')\ntime.sleep(1000)"
    sidecar = {"name": "side", "image": "any", "restartPolicy": "Always", "command": _python(term)}
    pods.run("pair", ["sleep", "0.5"], initContainers=[sidecar], terminationGracePeriodSeconds=5)
    status = pods.wait_phase("pair", "Succeeded")["status"]
    assert "terminated" in status["initContainerStatuses"][0]["state"]
    assert pods.log("pair", "side") == "up\n"


def test_restart_with_growing_back_off(pods: Pods) -> None:
    pods.run("crashes", ["sh", "-c", "date +%s.%N; exit 1"], restartPolicy="OnFailure")
    pod = pods.wait("crashes", "3 restarts", lambda s: _restarts(s) >= 3)
    assert pods.wait_waiting("crashes", "CrashLoopBackOff").startswith("back-off")
    folder = pods.agent.client.logs_path(pods.namespace, "crashes").parent
    times = [float((folder / f"{run}.log").read_text()) for run in range(4)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[1] >= 0.3, "0.3 s, after one at once"
    assert gaps[2] >= 0.6, "then twice as long"
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert pod["status"]["phase"] == "Running"


def test_other_processes_of_a_container_end_with_its_main_process(pods: Pods) -> None:
    """Also one that left the process group and was orphaned."""
    pods.run("family", ["sh", "-c", "setsid sleep 1000 & (sleep 1000 &) ; echo up; exec sleep 1000"])
    pods.wait_log("family", "up")
    client = pods.agent.client
    family = wait_for(
        lambda: pids if len(pids := client.pids(pods.namespace, "family")) == 3 else None, _SECONDS, "3 pids"
    )
    os.kill(family[0], signal.SIGKILL)
    pods.wait_phase("family", "Failed")
    wait_for(lambda: not any(map(psutil.pid_exists, family)), _SECONDS, "all of the family has ended")


# Deletion

_SLOW_TERM = """
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


def _collect_log(pods: Pods, name: str) -> Path:
    """The log's path, known before the pod is gone."""
    return pods.agent.client.logs_path(pods.namespace, name)


def test_deletion_runs_pre_stop_then_sends_term_then_waits(pods: Pods) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "touch hooked; sleep 0.3"]}}}
    pods.run("polite", _python(_SLOW_TERM.format(seconds=0.3)), lifecycle=hook)
    pods.wait_log("polite", "up")
    log, work = _collect_log(pods, "polite"), pods.agent.state_dir / "pods"
    pod = pods.get("polite")
    assert pod is not None
    began = time.monotonic()
    pods.delete("polite", gracePeriodSeconds=60)
    hooked = work / pod["metadata"]["uid"] / "work" / "main" / "hooked"
    wait_for(hooked.exists, _SECONDS, "the hook runs")
    assert "term" not in log.read_text(), "the signal comes after the hook"
    pods.wait_gone("polite")
    assert 0.6 <= time.monotonic() - began < 60
    assert log.read_text() == "up\nterm\nend\n"
    assert not hooked.exists()


def test_kill_after_the_grace_period(pods: Pods) -> None:
    pods.run("stubborn", _python(_SLOW_TERM.format(seconds=1000)))
    pods.wait_log("stubborn", "up")
    log = _collect_log(pods, "stubborn")
    began = time.monotonic()
    pods.delete("stubborn", gracePeriodSeconds=3)
    pods.wait_gone("stubborn")
    assert time.monotonic() - began >= 2.5
    assert log.read_text() == "up\nterm\n"


def test_forced_deletion_ends_the_processes(pods: Pods) -> None:
    pods.run("forced", _python(_SLOW_TERM.format(seconds=1000)))
    pods.wait_log("forced", "up")
    pids = pods.agent.client.pids(pods.namespace, "forced")
    pods.delete("forced", gracePeriodSeconds=0)
    pods.wait_gone("forced")
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), _SECONDS, "the processes have ended")


# What kubelet decides by itself


def _disruption(pod: Object) -> list[tuple[str, str]]:
    conditions = pod["status"].get("conditions", [])
    return [(c["status"], c["reason"]) for c in conditions if c["type"] == "DisruptionTarget"]


def test_eviction_under_pressure(pods: Pods) -> None:
    pods.run("greedy", _python(_SLOW_TERM.format(seconds=0.1)), terminationGracePeriodSeconds=60)
    pods.wait_log("greedy", "up")
    pods.agent.client.evict_pod(pods.namespace, "greedy")
    pod = pods.wait_phase("greedy", "Failed")
    assert (pod["status"]["reason"], _disruption(pod)) == ("Evicted", [("True", "TerminationByKubelet")])
    assert _main(pod["status"], "terminated")["exitCode"] == 0, "Failed, however well it ended"
    assert "deletionTimestamp" not in pod["metadata"]
    assert pods.log("greedy") == "up\nterm\nend\n"
    pods.agent.client.evict_pod(pods.namespace, "greedy")
    pods.delete("greedy")
    pods.wait_gone("greedy")


def test_shutdown_of_a_node(pods: Pods) -> None:
    client, node = pods.agent.client, pods.agent.nodes[1]
    for name, seconds in (("polite", 0.1), ("stubborn", 1000)):
        pods.run(name, _python(_SLOW_TERM.format(seconds=seconds)), node=1)
        pods.wait_log(name, "up")
    pids = client.pids(pods.namespace, "stubborn")
    with ThreadPoolExecutor(1) as pool:
        shutdown = pool.submit(client.shut_down_node, node, 8.0)
        try:
            pods.agent.wait_node(node, "False")
            pods.run("late", ["sleep", "1000"], node=1, nodeName=node)
            late = pods.wait_phase("late", "Failed")["status"]
        finally:
            shutdown.result()
            client.start_node(node)
    assert late["reason"] == "NodeShutdown"
    assert "containerStatuses" not in late
    for name in ("polite", "stubborn"):
        pod = pods.wait_phase(name, "Failed")
        assert (pod["status"]["reason"], _disruption(pod)) == (
            "Terminated",
            [("True", "TerminationByKubelet")],
        )
    assert not any(map(psutil.pid_exists, pids))
    pods.agent.wait_node(node, "True")
    for name in ("polite", "stubborn", "late"):
        pods.delete(name)
        pods.wait_gone(name)


# kubectl logs


def test_kubectl_logs(pods: Pods) -> None:
    pods.run("talks", ["sh", "-c", "for i in 1 2 3; do echo line $i; done; sleep 1; echo last"])
    pods.wait_log("talks", "line 3")
    kubectl = pods.agent.cluster.kubectl
    tail = kubectl("-n", pods.namespace, "logs", "talks", "--tail=1")
    assert tail.stdout in ("line 3\n", "last\n")
    followed = kubectl("-n", pods.namespace, "logs", "-f", "talks")
    assert followed.stdout == "line 1\nline 2\nline 3\nlast\n"


# Faults

_BEAT = """
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


def test_cut_node_reaches_no_api_and_its_processes_live(pods: Pods) -> None:
    pods.run("beats", _python(_BEAT))
    pods.wait_log("beats", "reached")
    client, node = pods.agent.client, pods.agent.nodes[0]
    client.cut_node(node)
    try:
        pods.wait_log("beats", "lost")
        client.kill_container(pods.namespace, "beats", signal=signal.SIGSTOP)
        client.kill_container(pods.namespace, "beats", signal=signal.SIGCONT)
        assert client.pids(pods.namespace, "beats"), "it runs on"
        client.kill_container(pods.namespace, "beats")
        wait_for(lambda: not client.pids(pods.namespace, "beats"), _SECONDS, "it has ended")
        pod = pods.get("beats")
        assert pod is not None
        assert pod["status"]["phase"] == "Running", "nobody could be told"
    finally:
        client.restore_node(node)
    pods.wait_phase("beats", "Failed")


def test_deletion_during_a_cut_is_carried_out_afterwards(pods: Pods) -> None:
    pods.run("far", ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done"])
    pods.wait_phase("far", "Running")
    client, node = pods.agent.client, pods.agent.nodes[0]
    client.cut_node(node)
    try:
        pods.delete("far")
        pods.run("other", ["true"], node=1)
        pods.wait_phase("other", "Succeeded")
        assert client.pids(pods.namespace, "far"), "the node has not heard of the deletion"
    finally:
        client.restore_node(node)
    pods.wait_gone("far")


def test_frozen_node_stands_still(pods: Pods) -> None:
    pods.run("ticks", _python("import time\nwhile True:\n    print('tick'); time.sleep(0.02)"))
    pods.wait_log("ticks", "tick")
    client, node = pods.agent.client, pods.agent.nodes[0]
    client.freeze_node(node)
    try:
        pids = client.pids(pods.namespace, "ticks")
        assert [psutil.Process(pid).status() for pid in pids] == [psutil.STATUS_STOPPED]
        size = len(pods.log("ticks"))
        pods.run("later", ["true"])
        pods.wait(
            "later", "is bound", lambda s: any(c["type"] == "PodScheduled" for c in s.get("conditions", ()))
        )
        assert len(pods.log("ticks")) == size
    finally:
        client.thaw_node(node)
    pods.wait_phase("later", "Succeeded")
    wait_for(lambda: len(pods.log("ticks")) > size, _SECONDS, "it ticks again")


def test_killed_node_becomes_not_ready_and_comes_back_empty(pods: Pods) -> None:
    pods.run("lost", ["sleep", "1000"], node=1)
    pods.run("service", ["sleep", "1000"], node=1, restartPolicy="Always")
    pods.wait_phase("lost", "Running")
    pods.wait_phase("service", "Running")
    client, node = pods.agent.client, pods.agent.nodes[1]
    pids = client.pids(pods.namespace, "lost") + client.pids(pods.namespace, "service")
    client.kill_node(node)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    pod = pods.get("lost")
    assert pod is not None
    assert pod["status"]["phase"] == "Running", "a node without power says nothing"
    with pytest.raises(NodeAgentError, match="is off"):
        client.cut_node(node)
    pods.agent.wait_node(node, "Unknown")
    client.start_node(node)
    pods.agent.wait_node(node, "True")
    ended = pods.wait_phase("lost", "Failed")
    assert _main(ended["status"], "terminated")["reason"] == "ContainerStatusUnknown"

    def restarted(status: Object) -> bool:
        return bool(_main(status, "running")) and _restarts(status) == 1

    pods.wait("service", "runs again", restarted)


def test_api_server_outage_hurts_no_container(pods: Pods) -> None:
    pods.run("survives", ["sh", "-c", "sleep 1; echo done; exec sleep 1000"])
    pods.run("ends", ["sleep", "1"], node=1)
    for name in ("survives", "ends"):
        pods.wait_phase(name, "Running")
    apiserver = pods.agent.cluster.component("apiserver")
    apiserver.kill()
    try:
        pods.wait_log("survives", "done")
        client = pods.agent.client
        wait_for(lambda: not client.pids(pods.namespace, "ends"), _SECONDS, "it ends during the outage")
        assert client.pids(pods.namespace, "survives")
    finally:
        apiserver.start()
    pods.wait_phase("ends", "Succeeded")
    pods.delete("survives", gracePeriodSeconds=0)


def test_unknown_names_are_refused(pods: Pods) -> None:
    with pytest.raises(NodeAgentError, match="no node 'nowhere'"):
        pods.agent.client.kill_node("nowhere")
    with pytest.raises(NodeAgentError, match="no pod default/nobody"):
        pods.agent.client.pids("default", "nobody")


# Networks of their own

_NETNS = {"annotations": {"devcluster/network": "netns"}}

_ECHO = """
import socket, threading
def echo(connection):
    while data := connection.recv(100):
        connection.sendall(data)
server = socket.create_server(("", 7000))
while True:
    connection, _ = server.accept()
    threading.Thread(target=echo, args=[connection], daemon=True).start()
"""

_CALL = """
import socket, sys, time
connection = None
while True:
    try:
        if connection is None:
            connection = socket.create_connection((sys.argv[1], 7000), 0.5)
            connection.settimeout(0.5)
            print("connected")
        connection.sendall(b"x")
        connection.recv(1)
        print("echo")
    except TimeoutError:
        print("silence")
    except OSError as error:
        print("error", error)
        connection = None
    time.sleep(0.05)
"""


@pytest.fixture
def isolated_pods(devcluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Pods]:
    """Pods on an agent of their own (it is not needed in both modes)."""
    agent = Agent(devcluster, tmp_path, "netns")
    with contextlib.closing(agent):
        yield Pods(agent, namespace)


@needs_root
@pytest.mark.root
def test_pods_with_networks_talk_and_can_be_cut(isolated_pods: Pods) -> None:
    pods, client = isolated_pods, isolated_pods.agent.client
    probe = {"periodSeconds": 1, "tcpSocket": {"port": 7000}}
    pods.run("server", _python(_ECHO), metadata=_NETNS, readinessProbe=probe)
    server = pods.wait("server", "is ready", _is_ready)
    address = server["status"]["podIP"]
    assert address.startswith("10.")
    pods.run("near", [*_python(_CALL), address], metadata=_NETNS)
    pods.run("far", [*_python(_CALL), address], metadata=_NETNS, node=1)
    pods.run("beats", _python(_BEAT), metadata=_NETNS)
    for name, word in (("near", "echo"), ("far", "echo"), ("beats", "reached")):
        pods.wait_log(name, word)

    def hears(name: str, word: str) -> None:
        """It prints ``word`` twice from now on: the first may have been on its way."""
        before = pods.log(name).count(word)
        wait_for(
            lambda: pods.log(name).count(word) > before + 1, _SECONDS, lambda: f"{word} in {pods.log(name)}"
        )

    client.cut_node(pods.agent.nodes[0])
    hears("far", "silence")
    hears("near", "echo")
    hears("beats", "lost")
    client.restore_node(pods.agent.nodes[0])
    hears("far", "echo")
    for direction in ("in", "out", "both"):
        client.cut_pod(pods.namespace, "server", direction)
        hears("near", "silence")
        hears("far", "silence")
        client.restore_pod(pods.namespace, "server")
        hears("near", "echo")
        hears("far", "echo")
    client.cut_path(pods.namespace, "server", "far")
    hears("far", "silence")
    hears("near", "echo")
    client.restore_path(pods.namespace, "server", "far")
    hears("far", "echo")
    for name in ("near", "far"):
        assert "error" not in pods.log(name), "packets were lost, nothing was refused or reset"
        assert pods.log(name).count("connected") == 1, "the connection has lived through it all"
    client.cut_pod(pods.namespace, "beats", "both")
    hears("beats", "lost")


def test_network_without_namespaces_is_refused(pods: Pods) -> None:
    if "rootless" not in pods.agent.nodes[0]:
        pytest.skip("namespaces can be had here")
    pods.run("netns", ["true"], metadata=_NETNS)
    assert "needs root" in pods.wait_waiting("netns", "ContainerCreating")


# The end


def _of(state_dir: Path) -> list[psutil.Process]:
    """Processes of the containers of the agent with this state folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            env = process.environ()
            if MARKER in env and env.get("HOME", "").startswith(str(state_dir)):
                found.append(process)
    return found


@pytest.mark.parametrize("options", [[], ["--rootless"]], ids=["plain", "rootless"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_nothing_is_left_when_the_agent_ends(
    devcluster: Cluster, namespace: str, tmp_path: Path, number: signal.Signals, options: list[str]
) -> None:
    agent = Agent(devcluster, tmp_path, "doomed", *options)
    pods = Pods(agent, namespace)
    memory = {"name": "m", "emptyDir": {"medium": "Memory"}}
    pods.run("main", ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"], volumes=[memory])
    pods.wait_phase("main", "Running")
    wait_for(lambda: len(_of(agent.state_dir)) == 2, _SECONDS, "both processes are up")
    children = psutil.Process(agent.process.pid).children(recursive=True)
    uid = devcluster.kubectl("-n", namespace, "get", "pod", "main", "-o", "jsonpath={.metadata.uid}").stdout
    folders = [
        f for place in ("/tmp", "/dev/shm") for f in Path(place).glob("dc-*") if any(f.glob(f"{uid[:8]}*"))
    ]
    assert {str(f.parent) for f in folders} == {"/tmp", "/dev/shm"}, (
        "what the agent has made outside its folder"
    )
    agent.process.send_signal(number)
    agent.process.wait(_SECONDS)
    wait_for(lambda: not any(child.is_running() for child in children), _SECONDS, "no process is left")
    wait_for(lambda: not _of(agent.state_dir), _SECONDS, "no container is left")
    wait_for(lambda: not any(folder.exists() for folder in folders), _SECONDS, "no folder is left")
    pods.delete("main", gracePeriodSeconds=0)
    for node in agent.nodes:
        devcluster.kubectl("delete", "node", node)


def test_agent_that_starts_again_finds_its_pods_lost(
    devcluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    first = Agent(devcluster, tmp_path, "again")
    pods = Pods(first, namespace)
    pods.run("lost", ["sleep", "1000"])
    pods.wait_phase("lost", "Running")
    first.process.kill()
    first.process.wait(_SECONDS)
    second = Agent(devcluster, tmp_path, "again")
    with contextlib.closing(second):
        Pods(second, namespace).wait_phase("lost", "Failed")
