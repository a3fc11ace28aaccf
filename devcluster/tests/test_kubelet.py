"""Nodes with a kubelet, from nothing to nothing. Needs root and packages: `make test-nodes`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.kubelet import cgroups
from devcluster.kubelet.cluster import KubeletCluster
from devcluster.paths import cache_dir
from devcluster.wait import wait_for

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: NODE
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "busybox:1.37", command: [sh, -c, COMMAND]}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubeletCluster]:
    """Two nodes."""
    with KubeletCluster(2) as started:
        yield started


def pod(cluster: KubeletCluster, namespace: str, name: str, node: str, command: str) -> None:
    manifest = POD.replace("NAME", name).replace("NODE", node).replace("COMMAND", json.dumps(command))
    cluster.apply(manifest, namespace=namespace)


def phase(cluster: KubeletCluster, namespace: str, name: str) -> str:
    found = cluster.read(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return str(found.get("status", {}).get("phase", "gone"))


def reaches(cluster: KubeletCluster, namespace: str, name: str, wanted: str) -> None:
    wait_for(
        lambda: phase(cluster, namespace, name) == wanted,
        90,
        lambda: f"{name} is {wanted}: {cluster.kubectl('-n', namespace, 'describe', 'pod', name).stdout}",
    )


def ready(cluster: KubeletCluster, node: str) -> str:
    status = cluster.read(f"/api/v1/nodes/{node}")["status"]
    return next(str(one["status"]) for one in status["conditions"] if one["type"] == "Ready")


def test_pods_of_two_nodes_reach_each_other_and_the_api_server(
    cluster: KubeletCluster, namespace: str
) -> None:
    pod(cluster, namespace, "server", "node-a", "echo hello | nc -l -p 7000")
    reaches(cluster, namespace, "server", "Running")
    address = cluster.read(f"/api/v1/namespaces/{namespace}/pods/server")["status"]["podIP"]
    pod(
        cluster,
        namespace,
        "client",
        "node-b",
        f"nc {address} 7000; nc -w 5 10.96.0.1 443 </dev/null",
    )
    reaches(cluster, namespace, "client", "Succeeded")
    assert cluster.kubectl("-n", namespace, "logs", "client").stdout == "hello\n"
    reaches(cluster, namespace, "server", "Succeeded")


def test_a_lookup_is_refused_at_once(cluster: KubeletCluster, namespace: str) -> None:
    """A server that does not answer would cost seconds, in torch 10 s at the start of each round."""
    pod(cluster, namespace, "lookup", "node-a", "cat /etc/resolv.conf")
    reaches(cluster, namespace, "lookup", "Succeeded")
    assert cluster.kubectl("-n", namespace, "logs", "lookup").stdout == "nameserver 127.0.0.1\n"


def test_a_node_loses_its_power_and_comes_back(cluster: KubeletCluster, namespace: str) -> None:
    node = cluster.nodes["node-b"]
    pod(cluster, namespace, "sleeper", "node-b", "exec sleep 1000")
    reaches(cluster, namespace, "sleeper", "Running")
    node.kill()
    assert not node.is_on
    wait_for(lambda: ready(cluster, "node-b") == "Unknown", 90, "the node is not ready")
    assert phase(cluster, namespace, "sleeper") == "Running", "nobody has said anything else"
    node.start()
    wait_for(lambda: ready(cluster, "node-b") == "True", 90, "the node is ready again")
    reaches(cluster, namespace, "sleeper", "Failed")
    ended = cluster.read(f"/api/v1/namespaces/{namespace}/pods/sleeper")["status"]["containerStatuses"][0]
    assert (ended["state"]["terminated"]["exitCode"], ended["state"]["terminated"]["reason"]) == (
        255,
        "Unknown",
    )


def test_processes_of_a_container_are_found(cluster: KubeletCluster, namespace: str) -> None:
    pod(cluster, namespace, "parent", "node-a", "sleep 1000 & exec sleep 2000")
    reaches(cluster, namespace, "parent", "Running")
    status = cluster.read(f"/api/v1/namespaces/{namespace}/pods/parent")["status"]["containerStatuses"][0]
    container = status["containerID"].rpartition("/")[2]
    node = cluster.nodes["node-a"]
    wait_for(lambda: len(node.container_pids(container)) == 2, 30, "both processes are there")
    first, _ = node.container_pids(container)
    assert Path("/proc", str(first), "cmdline").read_bytes() == b"sleep\x002000\x00"
    os.kill(first, signal.SIGKILL)
    reaches(cluster, namespace, "parent", "Failed")


def test_a_build_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    """What it has made so far goes with the cluster's folder."""
    folder = tmp_path / "images"
    seconds = str(100_000 + os.getpid())
    program = (
        "from pathlib import Path\nfrom devcluster.kubelet.images import BUSYBOX, Images\n"
        f"images = Images('127.0.0.1:1', Path({str(folder)!r}))\nimages.busybox(BUSYBOX)\n"
        f"images.derive('localhost/never', BUSYBOX, 'RUN sleep {seconds}')\n"
    )
    kept = _images_that_are_kept()
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_for(lambda: _sleepers(seconds), 120, "the step of the build runs")
    process.kill()
    process.wait(60)
    wait_for(lambda: not _sleepers(seconds), 30, "it is gone")
    assert _images_that_are_kept() == kept


def _images_that_are_kept() -> set[str]:
    return {file.name for file in (cache_dir() / "images" / "storage" / "overlay").iterdir()}


def _sleepers(seconds: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(file.parent.name)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    before = _traces()
    state = tmp_path / "state"
    program = (
        "import signal, sys\nfrom pathlib import Path\n"
        "from devcluster.kubelet.cluster import KubeletCluster\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        f"with KubeletCluster(1, state_dir=Path({str(state)!r})):\n"
        "    print('up', flush=True)\n    signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert _traces() != before
    process.send_signal(number)
    process.wait(60)
    wait_for(lambda: not state.exists(), 60, "the state folder is gone")
    wait_for(lambda: _traces() == before, 30, lambda: f"all is as before: {_traces()}, before {before}")


def _traces() -> dict[str, object]:
    """Whatever a node could leave on this machine."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    kept = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
    return {
        "mounts": sorted(line.split(" - ")[0].split()[4] for line in mounts),
        "links": sorted(link["ifname"] for link in links),
        "routes": Path("/proc/net/route").read_text(),
        "namespaces": sorted(os.listdir("/run/netns")) if Path("/run/netns").exists() else [],
        "groups": sorted(
            str(path) for one in cgroups.hierarchies() for path in one.folder.glob("devcluster-*")
        ),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in kept},
    }
