"""devcluster keeps its promises: clusters apart, nothing left behind, faults that do what they say.

Without nodes: those are tested with the node agent.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from devcluster.access import KubectlError
from devcluster.api import ApiClient, Response
from devcluster.claims import claim
from devcluster.cluster import Cluster
from devcluster.component import ComponentFailedError, SupervisorClient
from devcluster.ports import PortClaims, listens
from devcluster.wait import wait_for

pytestmark = pytest.mark.devcluster

COMPONENTS = ("etcd", "apiserver", "controller-manager", "scheduler")
SLOW = 3.0
"""Seconds by which writes are slowed here; a write that takes less was not slowed."""


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with Cluster(nodes=0) as started:
        yield started


@pytest.fixture
def place(plane: Cluster, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own; it goes with the cluster."""
    name = request.node.name.replace("_", "-").replace("[", "-").rstrip("]")[:63]
    create(plane.api, "/api/v1/namespaces", {"metadata": {"name": name}})
    return str(name)


def create(api: ApiClient, path: str, body: object) -> Response:
    answer = api.request("POST", path, body, timeout=60)
    assert answer.ok, answer
    return answer


def create_lease(api: ApiClient, namespace: str, name: str) -> None:
    create(api, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", {"metadata": {"name": name}})


def seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def alive(pids: list[int]) -> list[int]:
    """Those that live; a zombie that waits for its parent's wait() has ended."""

    def lives(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [pid for pid in pids if lives(pid)]


def audited(plane: Cluster, namespace: str, verb: str | None = None) -> list[dict[str, Any]]:
    """The audit log's events about the Leases of a namespace."""
    events = [json.loads(line) for line in plane.audit_log.read_text().splitlines()]
    return [
        event
        for event in events
        if event.get("objectRef", {}).get("namespace") == namespace
        and event["objectRef"]["resource"] == "leases"
        and verb in (None, event["verb"])
    ]


def test_clusters_do_not_see_each_other(plane: Cluster, place: str) -> None:
    with Cluster(nodes=0) as other:
        assert other.server != plane.server
        names = other.kubectl("get", "namespaces", "-o", "name").stdout
        assert place not in names
        assert plane.api.is_ok(f"/api/v1/namespaces/{place}")
        strangers_token = ApiClient(other.server, other.ca_file, plane.admin_token)
        assert strangers_token.request("GET", "/api/v1/namespaces").status == 401
        strangers_ca = ApiClient(other.server, plane.ca_file, other.admin_token)
        assert strangers_ca.request("GET", "/api/v1/namespaces").status == 0
        left = other.state_dir
    assert not left.exists()
    assert plane.api.is_ok("/readyz")


def test_a_taken_port_is_neither_free_nor_ones_own() -> None:
    claims, others = PortClaims(), PortClaims()
    port = claims.take()
    with socket.create_server(("127.0.0.1", port)), subprocess.Popen(["sleep", "20"]) as other:
        assert listens(os.getpid(), port)
        assert not listens(other.pid, port)
        other.kill()
    taken = {others.take() for _ in range(200)}
    assert port not in taken
    claims.release()
    others.release()


# The parent makes the cluster in a thread that ends, forks a copy of itself that holds all its file
# descriptors, and freezes etcd: each of these has been the reason that a child outlived its parent.
PARENT = """
import os, psutil, signal, sys, threading, time
from devcluster.cluster import Cluster

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell is started deaf to it
cluster = Cluster(nodes=0)
thread = threading.Thread(target=cluster.start)
thread.start()
thread.join()
cluster.component("etcd").freeze()
children = [child.pid for child in psutil.Process().children(recursive=True)]
copy = os.fork()
if copy == 0:
    time.sleep(600)
print(cluster.state_dir, copy, *children, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_cluster_ends_with_its_parent(end: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        state_dir, *ids = parent.stdout.readline().split()
        copy, *children = map(int, ids)
        try:
            assert len(children) == len(COMPONENTS) + 1  # and the supervisor
            assert alive(children) == children
            parent.send_signal(end)
            wait_for(lambda: not alive(children), 30, lambda: f"{alive(children)} have ended")
            assert not Path(state_dir).exists()
        finally:
            os.kill(copy, signal.SIGKILL)
            parent.kill()


def test_a_cluster_ends_with_its_supervisor(tmp_path: Path) -> None:
    supervisor = SupervisorClient(tmp_path / "state")
    log = tmp_path / "state" / "log"
    sleeper = supervisor.spawn(["sleep", "600"], dict(os.environ), log, grace=0)
    graceful = supervisor.spawn(["sleep", "600"], dict(os.environ), log, grace=5)
    assert alive([sleeper, graceful]) == [sleeper, graceful]
    os.kill(psutil.Process(sleeper).ppid(), signal.SIGKILL)
    wait_for(lambda: not alive([sleeper, graceful]), 60, "the components have ended")
    supervisor.end()


def test_what_a_component_left_behind_ends_too(tmp_path: Path) -> None:
    supervisor = SupervisorClient(tmp_path / "state")
    found = tmp_path / "pid"
    # A daemon: its parent is gone, its session is its own, and it ignores what can be ignored.
    script = f"trap '' TERM HUP INT; setsid sh -c 'echo $$ > {found}; sleep 600' & exit 0"
    supervisor.spawn(["sh", "-c", script], dict(os.environ), tmp_path / "state" / "log", grace=0)
    wait_for(lambda: found.exists() and found.read_text().endswith("\n"), 60, "the daemon has started")
    daemon = int(found.read_text())
    supervisor.end()
    assert alive([daemon]) == []
    assert not (tmp_path / "state").exists()


def test_a_cluster_ends_though_a_last_look_at_it_fails() -> None:
    cluster = Cluster()
    seen: list[str] = []
    port = cluster._ports.take()

    def fails() -> None:
        raise KeyError("of a log that is not as expected")

    cluster.before_stop(lambda: seen.append("another look"))
    cluster.before_stop(fails)
    with pytest.raises(KeyError, match="of a log"):
        cluster.stop()
    assert seen == ["another look"]
    held = claim(f"port-{port}")
    assert held is not None, "its ports are free"
    held.close()
    cluster.stop()


def test_a_state_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    with pytest.raises(RuntimeError, match="could not make"):
        Cluster(nodes=0, state_dir=tmp_path).start()
    assert precious.exists()


def test_a_component_that_ends_at_once_says_why(plane: Cluster) -> None:
    apiserver = plane.component("apiserver")
    etcd = plane.component("etcd")
    with pytest.raises(RuntimeError, match="running already"):
        apiserver.start()
    etcd.stop()
    blocker = wait_for(lambda: _listen(plane), 60, "etcd's port is free")
    try:
        with pytest.raises(ComponentFailedError, match="address already in use"):
            etcd.start()
    finally:
        blocker.close()
        etcd.start()
    wait_for(lambda: plane.api.is_ok("/readyz"), 60, "the API server is ready again")


def _listen(plane: Cluster) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", plane.etcd_port))
    except OSError:
        return None


def test_a_frozen_apiserver_is_silent_and_then_goes_on(plane: Cluster, place: str) -> None:
    apiserver = plane.component("apiserver")
    create_lease(plane.api, place, "before")
    apiserver.freeze()
    try:
        assert apiserver.running
        assert plane.api.request("GET", "/readyz", timeout=1).status == 0
    finally:
        apiserver.thaw()
    wait_for(lambda: plane.api.is_ok("/readyz"), 30, "the API server is ready again")
    assert plane.api.is_ok(f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases/before")


@pytest.mark.parametrize("name", COMPONENTS)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_component_comes_back(plane: Cluster, name: str, end: str) -> None:
    component = plane.component(name)  # type: ignore[arg-type]
    server, pid = plane.server, component.pid
    getattr(component, end)()
    assert not component.running
    assert not alive([pid])
    component.start()
    assert component.pid != pid
    assert plane.server == server
    wait_for(lambda: plane.api.is_ok("/readyz"), 60, "the API server is ready again")


def test_a_second_apiserver_shows_the_same_objects(plane: Cluster, place: str) -> None:
    second = plane.second_apiserver()
    try:
        api = ApiClient(second.server, plane.ca_file, plane.admin_token)
        create_lease(plane.api, place, "by-first")
        create_lease(api, place, "by-second")
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases"
        assert api.is_ok(f"{leases}/by-first")
        assert plane.api.is_ok(f"{leases}/by-second")
        plane.component("apiserver").stop()
        assert api.is_ok(f"{leases}/by-first")
        listed = plane.kubectl("--kubeconfig", str(second.kubeconfig), "get", "leases", "-n", place)
        assert "by-second" in listed.stdout
    finally:
        second.stop()
        if not plane.component("apiserver").running:
            plane.component("apiserver").start()
    assert second.audit_log.read_text().count("by-second") > 0


def test_slow_writes_slow_writes_and_nothing_else(plane: Cluster, place: str) -> None:
    api = plane.api
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases/first"
    elsewhere = f"{place}-elsewhere"
    create(api, "/api/v1/namespaces", {"metadata": {"name": elsewhere}})
    with plane.slow_writes(SLOW, [place], ["leases"]) as slow:
        assert seconds(lambda: create_lease(api, place, "first")) >= SLOW
        assert seconds(lambda: api.is_ok(lease)) < SLOW
        for untouched in (elsewhere, "kube-node-lease", "kube-system"):
            assert seconds(lambda: create_lease(api, untouched, "quick")) < SLOW  # noqa: B023
        slow.set_delay(2 * SLOW)
        assert seconds(lambda: api.request("DELETE", lease)) >= 2 * SLOW
    assert seconds(lambda: create_lease(api, place, "second")) < SLOW
    with pytest.raises(ValueError, match="by 0 to 29"), plane.slow_writes(40, [place], ["leases"]):
        pass


def test_slow_writes_hold_for_hundreds_of_writers_and_for_every_apiserver(plane: Cluster, place: str) -> None:
    writers = 200
    second = plane.second_apiserver()
    clients = [plane.api, ApiClient(second.server, plane.ca_file, plane.admin_token)]
    try:
        with plane.slow_writes(SLOW, [place], ["leases"]), ThreadPoolExecutor(writers) as pool:

            def write(number: int) -> float:
                return seconds(lambda: create_lease(clients[number % 2], place, f"lease-{number}"))

            took = list(pool.map(write, range(writers)))
    finally:
        second.stop()
    assert min(took) >= SLOW
    assert max(took) < writers * SLOW / 2  # one after the other they would take twice that


def test_metrics_are_served_through_the_aggregation_layer(plane: Cluster, place: str) -> None:
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{place}"

    def values(metric: str) -> list[str]:
        answer = plane.api.request("GET", f"{path}/{metric}")
        assert answer.ok, answer
        return [item["value"] for item in answer.json()["items"]]

    for value in ("3", "250m"):  # a second block serves as the first did
        with plane.external_metrics() as metrics:
            metrics.set(place, "queue", value)
            assert values("queue") == [value]
            assert values("other") == []
            metrics.unset(place, "queue")
            assert values("queue") == []
        wait_for(lambda: plane.api.request("GET", f"{path}/queue").status == 404, 30, "the API group is gone")


def test_the_namespace_of_rbac_is_guarded(plane: Cluster, place: str) -> None:
    someone = f"--as=system:serviceaccount:{place}:someone"
    with pytest.raises(KubectlError, match="forbidden"):
        plane.kubectl("get", "pods", "-n", place, someone)
    plane.kubectl("create", "role", "reader", "-n", place, "--verb=get,list", "--resource=pods")
    subject = f"--serviceaccount={place}:someone"
    plane.kubectl("create", "rolebinding", "reader", "-n", place, "--role=reader", subject)
    wait_for(
        lambda: plane.kubectl("get", "pods", "-n", place, someone, check=False).returncode == 0,
        30,
        "the role is in force",
    )


def test_admission_policies_are_in_force(plane: Cluster) -> None:
    plane.apply(
        """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-forbidden-names}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  validations:
  - {expression: "object.metadata.name != 'forbidden'", message: "not this name"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-forbidden-names}
spec: {policyName: no-forbidden-names, validationActions: [Deny]}
"""
    )

    def refused() -> bool:
        dry_run = "/api/v1/namespaces/default/configmaps?dryRun=All"
        return "not this name" in plane.api.request("POST", dry_run, {"metadata": {"name": "forbidden"}}).text

    wait_for(refused, 30, "the policy refuses the name")


def test_the_audit_log_has_every_request_that_was_answered(plane: Cluster, place: str) -> None:
    create_lease(plane.api, place, "audited")
    found = audited(plane, place)
    assert [(event["verb"], event["userAgent"], event["user"]["username"]) for event in found] == [
        ("create", "devcluster", "admin")
    ]
    assert found[0]["stage"] == "ResponseComplete"


def test_a_cut_proxy_holds_and_then_delivers_a_watch(plane: Cluster, place: str) -> None:
    proxy = plane.proxy()
    api = ApiClient(proxy.server, plane.ca_file, plane.admin_token)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases"
    assert api.is_ok("/readyz")
    with ThreadPoolExecutor(1) as pool:
        watch = pool.submit(lambda: api.request("GET", f"{leases}?watch=1&timeoutSeconds=4", timeout=60))
        wait_for(lambda: audited(plane, place, "watch"), 60, "the watch is open")
        proxy.cut()
        create_lease(plane.api, place, "during-the-cut")
        assert ApiClient(proxy.server, plane.ca_file).request("GET", "/readyz", timeout=1).status == 0
        wait_for(
            lambda: any(event["stage"] == "ResponseComplete" for event in audited(plane, place, "watch")),
            30,
            "the watch has ended at the API server's end",
        )
        assert not watch.done()
        proxy.restore()
        assert "during-the-cut" in watch.result(timeout=30).text
    assert api.is_ok("/readyz")


def run_cli(*args: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "devcluster", *args],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_line_from_up_to_down(plane: Cluster, tmp_path: Path) -> None:
    # Another cache, so that a developer's own cluster is not in the way; the build is shared by a link.
    cache = tmp_path / "devcluster"
    cache.mkdir(parents=True)
    built = plane.kubectl_binary.parent
    (cache / built.name).symlink_to(built)
    try:
        up = run_cli("up", "--nodes=0", "--name=cli", "--detach", cache=tmp_path)
        assert up.returncode == 0, up.stderr
        assert "export KUBECONFIG=" in up.stdout
        again = run_cli("up", "--nodes=0", "--name=cli", cache=tmp_path)
        assert "is up already" in again.stderr
        listed = run_cli("kubectl", "--name=cli", "get", "namespaces", "-o", "name", cache=tmp_path)
        assert "namespace/default" in listed.stdout
        log = cache / "clusters/cli/nodes/logs/default_worker-0_1234/main/0.log"
        log.parent.mkdir(parents=True)
        log.write_text("step 1\n")
        assert run_cli("logs", "--name=cli", "worker-0", cache=tmp_path).stdout == "step 1\n"
    finally:
        down = run_cli("down", "--name=cli", cache=tmp_path)
    assert down.returncode == 0, down.stderr
    assert not (cache / "clusters" / "cli").exists()
    assert "no cluster named" in run_cli("down", "--name=cli", cache=tmp_path).stderr
