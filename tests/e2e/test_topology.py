"""Ranks by the places of real nodes, as the status shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.cluster import Cluster
from elasticjob.contract.names import ZONE_ENV
from tests.e2e.job import JobRun, apart

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

LABEL = "topology.kubernetes.io/zone"


@pytest.fixture
def zones(installed: Cluster) -> Iterator[dict[str, str]]:
    """The zone of each node: the first and the last share one."""
    first, middle, last = installed.node_names[:3]
    found = {first: "z1", middle: "z2", last: "z1"}
    for node, zone in found.items():
        installed.kubectl("label", "node", node, f"{LABEL}={zone}")
    yield found
    installed.kubectl("label", "node", *found, f"{LABEL}-")


def environment(job: JobRun, pod: str) -> dict[str, str]:
    """That of the pod's first process."""
    pid = job.cluster.nodes.pids(job.namespace, pod)[0]
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


# shows: pods are in several racks or zones, ...
def test_ranks_follow_the_zones_of_nodes_and_the_status_counts_crossings(
    zones: dict[str, str], job: JobRun
) -> None:
    job.apply(replicas=3, pod=apart(job), memoryCheckpoints={"perPod": "64Mi"})
    job.training(1, members=3)
    members = sorted(
        (p for p in job.status()["participants"] if "groupRank" in p), key=lambda p: int(p["groupRank"])
    )
    ring = [zones[p["nodeName"]] for p in members]
    by_slot = [zones[p["nodeName"]] for p in sorted(members, key=lambda p: str(p["podName"]))]
    assert sorted(ring) == ["z1", "z1", "z2"]
    if by_slot[0] == "z1":
        assert ring == ["z1", "z1", "z2"], "slot 0 is rank 0, and its neighbour is the one of its zone"
    else:
        assert ring == ["z2", "z1", "z1"]
    if job.cluster.kubernetes != "1.30":  # from 1.35 on pods have the zones of their nodes
        told = {p["podName"]: environment(job, p["podName"])[ZONE_ENV] for p in members}
        assert told == {p["podName"]: zones[p["nodeName"]] for p in members}
    (counted,) = [c for c in job.round()["crossings"] if c["key"] == LABEL]
    assert (counted["domains"], counted["crossings"], counted["inSlotOrder"]) == (2, 2, 2)
    job.stop()
    job.complete()
