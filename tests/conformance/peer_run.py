"""A run without operator in the place of an ElasticJob: the same words, answered from the run's Leases.

What it was is known from a watch of the round Lease, which a thread of the test keeps.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from devcluster.cluster import Cluster
from elasticjob.api.connection import connect
from elasticjob.api.errors import ApiError
from elasticjob.api.leases import HttpLeaseApi, Lease
from elasticjob.contract import names
from elasticjob.contract.fields import RecordError
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.coordination.reading import read_round
from elasticjob.peers.run import RUN_LABEL, round_lease
from elasticjob.peers.settled import Settled
from tests.conformance.pods import Job, Pod, done, make_namespace

NAMESPACE = "conformance-peers"
ROLE = {
    "rules": [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "list", "watch", "create", "patch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
}
"""What docs/use/without-an-operator.md gives the pods' service account."""

BINDING = {
    "metadata": {"name": "torchrun-peers"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "torchrun-peers"},
    "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}],
}
_BINDINGS = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"


def prepare(cluster: Cluster) -> None:
    """The namespace, and what its admin grants to its pods once."""
    make_namespace(cluster, NAMESPACE)
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    metadata = {"name": "torchrun-peers"}
    done(cluster.api.request("POST", f"{rbac}/roles", {"metadata": metadata, **ROLE}))
    done(cluster.api.request("POST", _BINDINGS, BINDING))


class PeerRun(Job):
    """One run, and its pods. ``minimum`` and ``maximum`` are what its torchruns have as ``--nnodes``."""

    namespace = NAMESPACE
    label = RUN_LABEL

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        super().__init__(cluster, name, folder)
        self.minimum = self.maximum = 1
        self.history: list[Settled] = []
        self._lease: Lease | None = None
        connection = connect(str(cluster.kubeconfig))
        self._reader = HttpLeaseApi(connection, NAMESPACE)
        self._watcher = HttpLeaseApi(connection, NAMESPACE)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def create(self, replicas: int, later: int | None = None, **spec: Any) -> None:
        """There is nothing to create: its bounds are taken, limits and policies are an operator's."""
        sizes = (replicas, later or replicas, spec.get("minReplicas", replicas))
        self.minimum, self.maximum = min(sizes), max(sizes)

    def scale(self, replicas: int) -> None:
        """A run has the bounds with which it began, and the size of what joins."""
        assert self.minimum <= replicas <= self.maximum, "say it when the run is created"

    def delete(self) -> None:
        """Its pods and Leases."""
        self._stopped.set()
        self._watcher.stop()
        self._thread.join()
        self._delete_pods()

    def status(self) -> dict[str, Any]:
        """What its round Lease says."""
        settled = self._settled()
        return {} if settled is None else {"record": settled.record(), "rest": settled.rest()}

    def round(self) -> dict[str, Any]:
        """As ``status.currentRound``."""
        settled = self._settled()
        if settled is None:
            return {}
        r = settled.state
        found = {"number": r.number, "phase": r.phase, "members": len(r.members)}
        return {**found, "establishedTime": "known"} if self._established(settled) else found

    def causes(self) -> list[str]:
        """Why each round was formed, oldest first."""
        found, cause = [], "Started"
        for settled in self.history:
            if settled.state.active:
                found.append(cause)
            cause = settled.state.cause or cause
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """As that of an ElasticJob."""
        settled = self._settled()
        if settled is None or not settled.closed or settled.outcome != kind:
            return {}
        return {"type": kind, "status": "True", "message": settled.message}

    def waiting(self) -> str:
        """As an operator's status has it."""
        return RoundRecord.parse(read_round(self._lease).record).waiting_message if self._lease else ""

    def is_left(self) -> bool:
        """Its only agent was the coordinator, too."""
        return self._lease is not None and not self._lease.holder

    def states(self) -> dict[str, str]:
        """Of each pod that has joined: its state."""
        settled, found = self._settled(), {}
        members = {m.name: m for m in settled.state.members} if settled is not None else {}
        for item in self._items(
            f"{self._leases}?labelSelector={RUN_LABEL.replace('/', '%2F')}%3D{self.name}"
        ):
            name, annotations = item["metadata"]["name"], item["metadata"].get("annotations", {})
            if names.PARTICIPANT_ANNOTATION not in annotations:
                continue
            record = ParticipantRecord.parse(annotations[names.PARTICIPANT_ANNOTATION])
            member = members.get(name)
            active = settled is not None and settled.state.active
            outside = active and (member is None or member.id != record.id)
            found[name] = "Standby" if outside and record.state == "Joining" else record.state
        return found

    def ranks(self) -> dict[str, int]:
        """Of each member's pod: its rank."""
        settled = self._settled()
        return {m.name: m.group_rank for m in settled.state.members} if settled is not None else {}

    def make_pod(self, slot: int | None = None) -> Pod:
        """Its torchruns find the pod's address in their environment: it is one of the loopback interface."""
        pod = super().make_pod(slot)
        return replace(pod, environment={**pod.environment, "PET_LOCAL_ADDR": pod.address})

    def granted(self, pods: list[Any]) -> bool:
        """The namespace's admin has granted it before."""
        del pods
        return True

    def delete_round_lease(self) -> None:
        """As a user does by mistake."""
        done(self._api.request("DELETE", f"{self._leases}/{round_lease(self.name)}"))

    def delete_pod(self, pod: Pod) -> None:
        """It goes at once, and its Lease with it."""
        at_once = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        done(self._api.request("DELETE", f"{self._pods}/{pod.name}", at_once))

    def take_rights(self) -> None:
        """The namespace's admin has not granted anything yet."""
        done(self._api.request("DELETE", _BINDINGS + "/torchrun-peers"))

    def give_rights(self) -> None:
        """As ``prepare`` does."""
        done(self._api.request("POST", _BINDINGS, BINDING))

    def take_right_on_pods(self) -> None:
        """The role has Leases alone."""
        self._set_rules(ROLE["rules"][:1])

    def give_right_on_pods(self) -> None:
        """As ``prepare`` does."""
        self._set_rules(ROLE["rules"])

    def _set_rules(self, rules: list[dict[str, list[str]]]) -> None:
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/torchrun-peers"
        merge = "application/merge-patch+json"
        done(self._api.request("PATCH", path, {"rules": rules}, content_type=merge))

    @property
    def coordinator(self) -> str:
        """The pod that coordinates."""
        return self._lease.holder.partition("_")[0] if self._lease is not None else ""

    def _environment(self, pod: str, uid: str, slot: int) -> dict[str, str]:
        return {**super()._environment(pod, uid, slot), "JOB_COMPLETION_INDEX": str(slot)}

    def _settled(self) -> Settled | None:
        return self.history[-1] if self.history else None

    def _established(self, settled: Settled) -> bool:
        r = settled.state
        if not r.active or r.leader is None:
            return False
        try:
            annotations = self._reader.read(r.leader.name).annotations
            report = RoundReport.parse(annotations.get(names.REPORT_ANNOTATION, ""))
        except (ApiError, RecordError):
            return False
        return report.nonce == r.nonce and report.established

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                for lease in self._watcher.watch(round_lease(self.name)):
                    if lease is not None and not lease.deleted:
                        self._take(lease)
            except (ApiError, RecordError):
                self._stopped.wait(0.1)

    def _take(self, lease: Lease) -> None:
        self._lease = lease
        seen = read_round(lease)
        settled = Settled.parse(seen.record, seen.state)
        last = self.history[-1] if self.history else None
        if last is None or replace(settled, limits=last.limits).record() != last.record():
            self.history.append(settled)
