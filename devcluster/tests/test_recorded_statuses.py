"""What the stand-in writes of a pod is what a kubelet writes, in the same order.

A kubelet's is in `recorded/`, written by `test_kubelet_statuses.py` on real nodes.
"""

from __future__ import annotations

import pytest
from statuses import CASES, play, recorded, words

from devcluster.cluster import Cluster
from devcluster.wait import wait_for


@pytest.mark.parametrize("name", CASES)
def test_the_stand_in_writes_what_a_kubelet_writes(devcluster: Cluster, namespace: str, name: str) -> None:
    node = devcluster.node_names[0]

    def power(_: str) -> None:
        devcluster.nodes.kill_node(node)
        devcluster.nodes.start_node(node)

    def out_of_memory(pod: str, victim: int) -> None:
        def pids() -> list[int]:
            return devcluster.nodes.pids(namespace, pod, "main")

        wait_for(lambda: len(pids()) == 2, 20, "all its processes run")
        devcluster.nodes.run_out_of_memory(namespace, pod, "main", pids()[victim])

    act = {
        "kill": lambda pod: devcluster.nodes.kill_container(namespace, pod, "main"),
        "power": power,
        "off": lambda _: devcluster.nodes.kill_node(node),
        "on": lambda _: devcluster.nodes.start_node(node),
        "fill disk": lambda pod: devcluster.nodes.evict_pod(namespace, pod, words(name)),
        "short of disk": lambda pod: devcluster.nodes.evict_pod(namespace, pod, words(name)),
        "oom main": lambda pod: out_of_memory(pod, 0),
        "oom other": lambda pod: out_of_memory(pod, 1),
    }
    written = play(devcluster, namespace, CASES[name], node, act)
    assert written == recorded(name)
