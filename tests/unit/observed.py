"""The words of the tests of ``observe``: a world whose watches bring what a test says."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, cast

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.objects import read_node
from elasticjob_operator.observe.seen_lease import read_lease
from elasticjob_operator.observe.seen_pod import read_pod
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.state.model import Job, JobSpec, Observed, Pod

TEMPLATED = Job("ns", "job", "job-uid", 1, JobSpec(template={"spec": {}}))
FOREIGN = Job("ns", "job", "job-uid", 1, JobSpec())
THEIR_PODS = "/api/v1/namespaces/theirs/pods"


class NoApi:
    def __init__(self) -> None:
        self.write_outages = WriteOutages()


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.api = NoApi()
        self.dirty: list[tuple[str, str]] = []
        self.cache = ClusterCache(
            cast(Api, self.api), (), lambda ns, job: self.dirty.append((ns, job)), lambda: self.now
        )
        self.version = 1
        for informer in self.cache.informers():
            informer.good_since = 900.0

    def pod(self, name: str = "job-0-0", **changes: Any) -> None:
        self.cache.pods.put(read_pod(raw_pod(name, version=self.tick(), **changes)))

    def lease(self, name: str = "job-0-0", version: int | None = None, **texts: str) -> None:
        meta = {
            "namespace": "ns",
            "name": name,
            "uid": f"lease-{name}",
            "labels": {JOB_LABEL: "job"},
            "resourceVersion": str(version or self.tick()),
            "annotations": {f"elasticjob.dev/{key}": text for key, text in texts.items()},
        }
        self.cache.leases.put(read_lease({"metadata": meta, "spec": {"holderIdentity": f"uid-{name}"}}))

    def node(
        self, name: str, ready: str | None = "True", uid: str = "uid-node", taints: tuple[str, ...] = ()
    ) -> None:
        conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
        meta = {"name": name, "uid": uid, "resourceVersion": str(self.tick())}
        spec = {"taints": [{"key": f"node.kubernetes.io/{key}", "effect": "NoExecute"} for key in taints]}
        self.cache.nodes.put(
            read_node({"metadata": meta, "spec": spec, "status": {"conditions": conditions}})
        )

    def tick(self) -> int:
        self.version += 1
        return self.version

    def pass_time(self, seconds: float) -> None:
        """Time in which this process was running."""
        while seconds > 0:
            self.now += min(seconds, 1.0)
            seconds -= 1.0
            self.cache.continuity("ns")

    def observe(self, job: Job = TEMPLATED) -> Observed:
        publisher = LeaseRoundPublisher(cast(Any, None), self.cache, lambda: self.now)
        return replace(self.cache.observe(job), **publisher.published(job)._asdict())

    def only(self, job: Job = TEMPLATED) -> Pod:
        (pod,) = self.observe(job).pods
        return pod


def raw_pod(name: str = "job-0-0", version: int = 1, **changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {JOB_LABEL: "job", "elasticjob.dev/slot": "0", "elasticjob.dev/attempt": "0"},
            "ownerReferences": [{"kind": "ElasticJob", "name": "job", "uid": "job-uid", "controller": True}],
            "annotations": {},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "sidecar"}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "podIP": "10.0.0.1",
        },
    }
    for part, fields in changes.items():
        raw[part] = {**raw[part], **copy.deepcopy(fields)}
    return raw


def status(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}
