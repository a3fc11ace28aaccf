"""What the stand-in writes of a pod is what a kubelet writes, in the same order.

A kubelet's is in `recorded/`, written by the test of it, on real nodes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from statuses import CASES, RECORDED, play

from devcluster.cluster import Cluster
from devcluster.kubelet.cluster import KubeletCluster


@pytest.fixture(scope="module")
def kubelets() -> Iterator[KubeletCluster]:
    """One node with a kubelet."""
    with KubeletCluster(1) as started:
        yield started


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Any:
    """The test's: that with kubelets, or the session's."""
    return request.getfixturevalue(getattr(request, "param", "devcluster"))


@pytest.mark.parametrize("name", CASES)
def test_the_stand_in_writes_what_a_kubelet_writes(devcluster: Cluster, namespace: str, name: str) -> None:
    node = devcluster.node_names[0]

    def power(_: str) -> None:
        devcluster.nodes.kill_node(node)
        devcluster.nodes.start_node(node)

    act = {"kill": lambda pod: devcluster.nodes.kill_container(namespace, pod, "main"), "power": power}
    written = play(devcluster, namespace, CASES[name], node, act)
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    assert written == recorded


@pytest.mark.nodes
@pytest.mark.parametrize("cluster", ["kubelets"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_a_kubelet_writes_what_is_recorded(cluster: KubeletCluster, namespace: str, name: str) -> None:
    ((node_name, node),) = cluster.nodes.items()

    def kill(pod: str) -> None:
        status = cluster.read(f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"]
        (own,) = status["containerStatuses"]
        os.kill(node.container_pids(own["containerID"].rpartition("/")[2])[0], signal.SIGKILL)

    def power(_: str) -> None:
        node.kill()
        node.start()

    act: Mapping[str, Callable[[str], None]] = {"kill": kill, "power": power}
    written = play(cluster, namespace, CASES[name], node_name, act)
    file = RECORDED / f"{name}.json"
    if os.environ.get("RECORD"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(written, indent=1) + "\n")
    assert written == json.loads(file.read_text())
