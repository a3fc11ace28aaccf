"""What a kubelet writes of a pod is what is recorded of it. Needs root and packages: `make test-nodes`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping

import pytest
from statuses import CASES, RECORDED, play, recordings, without_figures

from devcluster.kubelet.cluster import KubeletCluster
from devcluster.wait import wait_for

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]


_RESERVED = 3 << 30
"""More than others write on this machine's disk while a test runs."""


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

    def fill_disk(pod: str) -> None:
        write = ["dd", "if=/dev/zero", "of=/full", "bs=1M", "count=50"]
        cluster.kubectl("-n", namespace, "exec", pod, "--", *write)

    def short_of_disk(pod: str) -> None:
        node.reserve_disk(_RESERVED)
        fill = ["exec", pod, "--", "fallocate", "-l", str(2 * _RESERVED), "/full"]
        wait_for(
            lambda: cluster.kubectl("-n", namespace, *fill, check=False).returncode == 0,
            60,
            "the kubelet, started again, knows the pod, which fills the disk",
        )

    act: Mapping[str, Callable[[str], None]] = {
        "kill": kill,
        "power": power,
        "off": lambda _: node.kill(),
        "on": lambda _: node.start(),
        "fill disk": fill_disk,
        "short of disk": short_of_disk,
        "oom main": lambda pod: out_of_memory(pod, 0),
        "oom other": lambda pod: out_of_memory(pod, 1),
    }
    try:
        written = play(cluster, namespace, CASES[name], node_name, act)
    finally:
        if CASES[name].do == "short of disk":
            node.configure_kubelet({})
    file = RECORDED / f"{name}.json"
    if os.environ.get("RECORD"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(written, indent=1) + "\n")
    assert without_figures(written) in [without_figures(one) for one in recordings(name)]
