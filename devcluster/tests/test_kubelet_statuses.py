"""What a kubelet writes of a pod is what is recorded of it. Needs root and packages: `make test-nodes`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping

import pytest
from statuses import CASES, RECORDED, play

from devcluster.kubelet.cluster import KubeletCluster
from devcluster.wait import wait_for

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubeletCluster]:
    """One node."""
    with KubeletCluster(1) as started:
        yield started


@pytest.mark.parametrize("name", CASES)
def test_a_kubelet_writes_what_is_recorded(cluster: KubeletCluster, namespace: str, name: str) -> None:
    ((node_name, node),) = cluster.nodes.items()

    def container(pod: str) -> str:
        status = cluster.read(f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"]
        (own,) = status["containerStatuses"]
        return str(own["containerID"].rpartition("/")[2])

    def kill(pod: str) -> None:
        os.kill(node.container_pids(container(pod))[0], signal.SIGKILL)

    def out_of_memory(pod: str, victim: int) -> None:
        running = container(pod)
        wait_for(lambda: len(node.container_pids(running)) == 2, 20, "all its processes run")
        node.fill_memory(running, node.container_pids(running)[victim])

    def power(_: str) -> None:
        node.kill()
        node.start()

    act: Mapping[str, Callable[[str], None]] = {
        "kill": kill,
        "power": power,
        "oom main": lambda pod: out_of_memory(pod, 0),
        "oom other": lambda pod: out_of_memory(pod, 1),
    }
    written = play(cluster, namespace, CASES[name], node_name, act)
    file = RECORDED / f"{name}.json"
    if os.environ.get("RECORD"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(written, indent=1) + "\n")
    assert written == json.loads(file.read_text())
