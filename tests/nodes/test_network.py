"""The NetworkPolicy of a job, on a network that enforces it."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from tests.nodes import policies
from tests.nodes.job import NodesJob

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900, func_only=True)]


def connects(job: NodesJob, name: str, address: str, port: int, labels: dict[str, str]) -> str:
    """What a pod with these labels says when it connects: `connected` or `blocked`."""
    command = f"nc -w 5 {address} {port} </dev/null 2>/dev/null && echo connected || echo blocked"
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": job.namespace, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "busybox:1.37", "command": ["sh", "-c", command]}],
        },
    }
    job.create(pod)
    path = f"/api/v1/namespaces/{job.namespace}/pods/{name}"
    job.wait_for(lambda: job.cluster.read(path)["status"]["phase"] == "Succeeded", f"{name} has tried")
    return job.kubectl("logs", name).strip()


def store_port(job: NodesJob, pod: str) -> int:
    """The port of the leader's store: where other pods are connected to torchrun itself."""
    first = job.pids(pod)[0]
    command = [
        "nsenter",
        f"--net=/proc/{first}/ns/net",
        "ss",
        "--tcp",
        "--listening",
        "--numeric",
        "--processes",
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in listed.splitlines() if f"pid={first}," in line)
    return int(line.split()[3].rpartition(":")[2])


def test_a_stranger_is_blocked_and_members_pass(job: NodesJob) -> None:
    leader = job.member(0)
    address, port = job.pods()[leader]["status"]["podIP"], store_port(job, leader)
    assert connects(job, "stranger-before", address, port, {}) == "connected"
    with policies.enforced(job.cluster):
        assert connects(job, "stranger", address, port, {}) == "blocked"
        assert job.goes_on() == 1
        # A new pod of the job, whose address no rule has yet, joins as well.
        deleted, struck = job.member(1), time.time()
        job.kubectl("delete", "pod", deleted, "--wait=false")
        found = job.recovered("kubectl delete pod where policies are in force", struck, members=2)
        assert (found.cause, found.account) == ("PodDeleted", "preemption")
        assert f"{deleted} (group rank 1) was deleted" in found.message
    print(json.dumps(job.status()["currentRound"]))
