"""A job each of whose pods fills a node: what the scheduler does with it can be counted."""

from __future__ import annotations

from typing import Any

from devcluster.access import ClusterAccess
from tests.integration.lifecycle_job import PlayedJob

A_NODE = {"requests": {"cpu": "40"}}
"""More than half of devcluster's nodes, which have 64."""
API = "/apis/scheduling.k8s.io"


class PlacedJob(PlayedJob):
    """One ElasticJob with a PodGroup, unless it asks for none."""

    def __init__(self, cluster: ClusterAccess, namespace: str, name: str) -> None:
        super().__init__(cluster, namespace, name)
        self.resources = A_NODE

    def submit(
        self, replicas: int, minimum: int | None = None, gang: str = "Kubernetes", **spec: Any
    ) -> None:
        """Apply the job."""
        if minimum is not None:
            spec["minReplicas"] = minimum
        self.apply(replicas=replicas, gangScheduling=gang, **spec)

    def live(self) -> dict[str, dict[str, Any]]:
        """Its pods that are not on their way out."""
        return {n: pod for n, pod in self.pods().items() if "deletionTimestamp" not in pod["metadata"]}

    def placed(self) -> set[str]:
        """Its pods that have a node."""
        return {name for name, pod in self.live().items() if pod["spec"].get("nodeName")}

    def groups(self) -> set[str]:
        """The PodGroups that its pods name, "" for those that name none."""
        specs = (pod["spec"] for pod in self.live().values())
        return {spec.get("schedulingGroup", {}).get("podGroupName", "") for spec in specs}

    def minimum(self) -> int | None:
        """How many pods its PodGroup gathers; None without one."""
        found = self.group()
        return found["spec"]["schedulingPolicy"]["gang"]["minCount"] if found else None

    def group(self) -> dict[str, Any]:
        """Its PodGroup, {} without one."""
        version = "v1alpha2" if self.fixed else "v1beta1"
        path = f"{API}/{version}/namespaces/{self.namespace}/podgroups/{self.name}-elasticjob"
        return self.cluster.read(path)

    @property
    def fixed(self) -> bool:
        """Whether PodGroups of this cluster cannot be changed."""
        return bool(self.cluster.read(f"{API}/v1alpha2"))

    def speaks_of(self, words: str) -> bool:
        """Whether the job's condition has these words."""
        return words in self.condition("Training").get("message", "")

    def has(self, live: int, placed: int) -> None:
        """Wait until it has so many pods, and so many of them on nodes."""
        self.wait_for(
            lambda: (len(self.live()), len(self.placed())) == (live, placed),
            f"{placed} of {live} pods placed",
        )
