"""What tests need of Kueue: queues, flavors, and Workloads of others that want quota."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devcluster.cluster import Cluster
from devcluster.kueue import API, Kueue
from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.observe.seen_workload import EXTRA_LABEL, read_workload
from elasticjob_operator.plan.queue.workloads import Workload
from tests.chart import added_rights
from tests.cluster_job import ClusterJob

ON = {"kueue": {"enabled": True}}
"""The chart's value."""
POD_CPU = 100
"""Thousandths of a CPU that each pod asks for. Quotas are numbers of such pods."""
REQUESTS = {"cpu": f"{POD_CPU}m"}
API_VERSION = API.removeprefix("/apis/")
WORKLOADS = "workloads.kueue.x-k8s.io"
"""Kubernetes has another kind of this name, beside its PodGroups."""
DEADLINE = 60.0


class Stage:
    """Queues of one namespace, and who asks for quota there."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._suffix = namespace.rpartition("-")[2]
        """Random: in the names of all that is the cluster's."""
        self._cohort = f"cohort-{self._suffix}"

    def make(self, kind: str, name: str, spec: Mapping[str, Any], **meta: Any) -> None:
        """Create an object of Kueue's."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}
        self.cluster.kubectl("create", "-f", "-", input=json.dumps(body))

    def flavor(
        self,
        labels: Mapping[str, str] | None = None,
        name: str = "flavor",
        tolerations: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """A kind of node of this namespace's own."""
        full = f"{name}-{self._suffix}"
        spec = {"nodeLabels": dict(labels or {}), "tolerations": list(tolerations)}
        self.make("ResourceFlavor", full, spec)
        return full

    def priority_class(self, value: int) -> str:
        """A WorkloadPriorityClass of this namespace's own."""
        name = f"class-{value}-{self._suffix}"
        body = {
            "apiVersion": API_VERSION,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        self.cluster.kubectl("create", "-f", "-", input=json.dumps(body))
        return name

    def queue(self, name: str, pods: int, *flavors: str) -> None:
        """A queue with a quota for so many pods of each flavor, which lends what it does not use and takes it
        back. Flavors are tried in this order."""
        quota = {"name": "cpu", "nominalQuota": f"{pods * POD_CPU}m"}
        kinds = [{"name": flavor, "resources": [quota]} for flavor in flavors]
        group = {"coveredResources": ["cpu"], "flavors": kinds}
        spec = {
            "namespaceSelector": {},
            "cohortName": self._cohort,
            "resourceGroups": [group],
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        }
        self.make("ClusterQueue", self.cluster_queue(name), spec)
        self.make("LocalQueue", name, {"clusterQueue": self.cluster_queue(name)}, namespace=self.namespace)

    def cluster_queue(self, name: str) -> str:
        """The name of the ClusterQueue of a queue."""
        return f"{name}-{self._suffix}"

    def stop(self, name: str, policy: str = "HoldAndDrain") -> None:
        """Set the stopPolicy of a queue; ``None`` lets it go on."""
        change = json.dumps({"spec": {"stopPolicy": policy}})
        self.cluster.kubectl("patch", "clusterqueue", self.cluster_queue(name), "--type=merge", "-p", change)

    def used(self, name: str) -> int:
        """Of how many pods the quota of a queue is used, by Kueue's own count."""
        status = self.cluster.read(f"{API}/clusterqueues/{self.cluster_queue(name)}").get("status", {})
        totals = [
            str(resource["total"])
            for flavor in status.get("flavorsReservation") or ()
            for resource in flavor["resources"]
        ]
        return sum(_thousandths(total) for total in totals) // POD_CPU

    def ask(self, name: str, queue: str, pods: int, priority: int = 0) -> None:
        """Another's Workload, for so many pods."""
        container = {"name": "c", "image": "x", "resources": {"requests": REQUESTS}}
        template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}}
        pod_set = {"name": "main", "count": pods, "template": template}
        spec = {"queueName": queue, "priority": priority, "podSets": [pod_set]}
        self.make("Workload", name, spec, namespace=self.namespace)

    def workload(self, name: str) -> Workload | None:
        """A Workload by its name, as the operator reads it."""
        raw = self.cluster.read(f"{API}/namespaces/{self.namespace}/workloads/{name}")
        return read_workload(raw).workload if raw else None

    def admitted(self, name: str) -> bool:
        """Whether the Workload of that name is admitted."""
        found = self.workload(name)
        return found is not None and found.live

    def activate(self, name: str, active: bool = True) -> None:
        """Set ``spec.active`` of a Workload, if it is still there."""
        change = ("patch", WORKLOADS, name, "--type=merge", "-p", json.dumps({"spec": {"active": active}}))
        done = self.cluster.kubectl("-n", self.namespace, *change, check=False)
        assert done.returncode == 0 or "not found" in done.stderr, done.stderr

    def withdraw(self, name: str) -> None:
        """Delete another's Workload."""
        self.cluster.kubectl("-n", self.namespace, "delete", WORKLOADS, name, "--ignore-not-found")

    def of_job(self, job: ClusterJob) -> dict[str, Workload]:
        """The Workloads of a job, as the operator reads them: ``base`` and the numbers of extras."""
        path = f"{API}/namespaces/{self.namespace}/workloads?labelSelector={JOB_LABEL}={job.name}"
        return {_short(raw): read_workload(raw).workload for raw in self.cluster.read(path)["items"]}

    def clean_up(self) -> None:
        """Remove the queues, which are the cluster's; the job must be gone."""
        every = f"{API}/namespaces/{self.namespace}/workloads"
        for raw in self.cluster.read(every)["items"]:
            self.withdraw(raw["metadata"]["name"])
        for kind in ("clusterqueue", "resourceflavor", "workloadpriorityclass"):
            found = json.loads(self.cluster.kubectl("get", kind, "-o", "json").stdout)["items"]
            names = [one["metadata"]["name"] for one in found if self._suffix in one["metadata"]["name"]]
            if names:
                self.cluster.kubectl("delete", kind, *names, "--timeout=60s")


def labels(queue: str, priority_class: str = "") -> dict[str, str]:
    """The labels of an ElasticJob that put it into a queue."""
    found = {"kueue.x-k8s.io/queue-name": queue}
    return {**found, "kueue.x-k8s.io/priority-class": priority_class} if priority_class else found


def _short(raw: Mapping[str, Any]) -> str:
    meta = raw["metadata"]
    return str(meta["name"]).rpartition("-")[2] if EXTRA_LABEL in meta["labels"] else "base"


def _thousandths(quantity: str) -> int:
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else 1000 * int(quantity)


def started(cluster: Cluster, values: dict[str, Any], folder: Path) -> Kueue:
    """Kueue's manager, and what the chart gives the operator's account with these values. ``folder`` is
    helm's."""
    added_rights.give(cluster, values, folder)
    running = Kueue(cluster)
    running.start()
    return running
