"""A job each of whose pods fills a node: what the scheduler does with it can be counted."""

from __future__ import annotations

from typing import Any

from devcluster.access import ClusterAccess
from tests.gang.gangs import Gang, at
from tests.integration.lifecycle_job import PlayedJob

CPU = 40
A_NODE = {"requests": {"cpu": str(CPU)}}
"""More than half of devcluster's nodes, which have 64."""


class PlacedJob(PlayedJob):
    """One ElasticJob with a PodGroup, unless it asks for none."""

    def __init__(self, cluster: ClusterAccess, namespace: str, name: str, gang: Gang) -> None:
        super().__init__(cluster, namespace, name)
        self.resources = A_NODE
        self.gang = gang

    def submit(self, replicas: int, minimum: int | None = None, grouped: bool = True, **spec: Any) -> None:
        """Apply the job."""
        if minimum is not None:
            spec["minReplicas"] = minimum
        pod = {"schedulerName": self.gang.scheduler} if self.gang.scheduler else None
        asked = self.gang.name if grouped else "None"
        self.apply(pod=pod, replicas=replicas, gangScheduling=asked, **spec)

    def live(self) -> dict[str, dict[str, Any]]:
        """Its pods that are not on their way out."""
        return {n: pod for n, pod in self.pods().items() if "deletionTimestamp" not in pod["metadata"]}

    def placed(self) -> set[str]:
        """Its pods that have a node."""
        return {name for name, pod in self.live().items() if pod["spec"].get("nodeName")}

    def groups(self) -> set[str]:
        """The PodGroups that its pods name, "" for those that name none."""
        return {self.gang.group_of(pod) for pod in self.live().values()}

    def minimum(self) -> int | None:
        """How many pods its PodGroup gathers; None without one."""
        found: int | None = at(self.group(), self.gang.minimum)
        return found

    def group(self) -> dict[str, Any]:
        """Its PodGroup, {} without one."""
        served = [one for one in self.gang.versions if self.cluster.read(f"/apis/{one}")]
        if not served:
            return {}
        path = f"/apis/{served[0]}/namespaces/{self.namespace}/podgroups/{self.name}-elasticjob"
        return self.cluster.read(path)

    @property
    def fixed(self) -> bool:
        """Whether its PodGroup cannot be changed."""
        return bool(self.group().get("apiVersion") == "scheduling.k8s.io/v1alpha2")

    def speaks_of(self, words: str) -> bool:
        """Whether the job's condition has these words."""
        return words in self.condition("Training").get("message", "")

    def has(self, live: int, placed: int, seconds: float | None = None) -> None:
        """Wait until it has so many pods, and so many of them on nodes."""
        self.wait_for(
            lambda: (len(self.live()), len(self.placed())) == (live, placed),
            f"{placed} of {live} pods placed",
            seconds,
        )
