"""A network that enforces NetworkPolicies, as a cluster's network plugin does.

Of a policy it knows what those of jobs have: ingress from pods of the same namespace, by matchLabels.
Packets are dropped on the nodes, which forward them.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from devcluster.kubelet.cluster import KubeletCluster

_TABLE = "policies"
_SECONDS = 0.5


@contextlib.contextmanager
def enforced(cluster: KubeletCluster) -> Iterator[None]:
    """Inside of the block policies are in force on all nodes, also those of pods that come later."""
    done = threading.Event()
    _apply(cluster)

    def follow() -> None:
        while not done.wait(_SECONDS):
            _apply(cluster)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for node in cluster.nodes.values():
            _nft(node.pid, f"delete table inet {_TABLE}\n")


def _apply(cluster: KubeletCluster) -> None:
    policies = cluster.read("/apis/networking.k8s.io/v1/networkpolicies")["items"]
    pods = [pod for pod in cluster.read("/api/v1/pods")["items"] if _has_own_address(pod)]
    text = "\n".join(line for policy in policies for line in _rules(policy, pods))
    for node in cluster.nodes.values():
        _nft(
            node.pid,
            f"table inet {_TABLE}\ndelete table inet {_TABLE}\ntable inet {_TABLE} {{\nchain forward {{\n"
            f"type filter hook forward priority 0; policy accept;\nct state established,related accept\n"
            f"{text}\n}}\n}}\n",
        )


def _rules(policy: Mapping[str, Any], pods: list[dict[str, Any]]) -> Iterator[str]:
    namespace = policy["metadata"]["namespace"]
    for pod in _selected(policy["spec"]["podSelector"], namespace, pods):
        address = pod["status"]["podIP"]
        for rule in policy["spec"].get("ingress", ()):
            sources = [
                source["status"]["podIP"]
                for peer in rule["from"]
                for source in _selected(peer["podSelector"], namespace, pods)
            ]
            if sources:
                yield f"ip saddr {{ {', '.join(sources)} }} ip daddr {address} accept"
        yield f"ip daddr {address} drop"


def _selected(
    selector: Mapping[str, Any], namespace: str, pods: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    assert set(selector) <= {"matchLabels"}, f"{selector} has more than this network knows"
    for pod in pods:
        meta = pod["metadata"]
        if (
            meta["namespace"] == namespace
            and selector["matchLabels"].items() <= meta.get("labels", {}).items()
        ):
            yield pod


def _has_own_address(pod: Mapping[str, Any]) -> bool:
    status = pod["status"]
    ended = status.get("phase") in ("Succeeded", "Failed")
    return bool(status.get("podIP")) and not ended and not pod["spec"].get("hostNetwork")


def _nft(pid: int, script: str) -> None:
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "nft", "-f", "-"]
    subprocess.run(command, input=script, text=True, check=True, capture_output=True, timeout=20)
