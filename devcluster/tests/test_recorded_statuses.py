"""What the stand-in writes of a pod is what a kubelet writes, in the same order.

A kubelet's is in `recorded/`, written by `test_kubelet_statuses.py` on real nodes.
"""

from __future__ import annotations

import json

import pytest
from statuses import CASES, RECORDED, play

from devcluster.cluster import Cluster


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
