"""What an agent says in a run without operator, where it says something else than in an operator's job.
Pure."""

from __future__ import annotations

from elasticjob.agent.settings import Settings
from elasticjob.contract.round_record import RoundRecord
from elasticjob.peers.run import round_lease


def waiting(s: Settings, record: RoundRecord | None, seconds: float) -> str:
    """Names what this participant waits for."""
    if record is None:
        return (
            f"waiting for a coordinator, for {seconds:.0f} s so far: Lease {round_lease(s.job)} in "
            f"namespace {s.namespace} has no record of run {s.job_uid}"
        )
    why = record.waiting_message or "this pod has joined, but the coordinator has not selected it yet"
    return f"waiting for round {record.number + 1}: {why}"


def forbidden(s: Settings, error: str, seconds: float) -> str:
    """Rights are missing: what to hand to those who may grant them."""
    return (
        f"the API server has denied access for {seconds:.0f} s: {error}. Without an operator, this pod's "
        f"service account needs a Role in namespace {s.namespace}, which the namespace's admin creates "
        f"once:\n{ROLE}"
        "and a RoleBinding to that service account (docs/use/without-an-operator.md)"
    )


ROLE = """\
  apiVersion: rbac.authorization.k8s.io/v1
  kind: Role
  metadata: {name: torchrun-peers}
  rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, patch]}
  - {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
"""
"""The pods are optional: with them a lost pod is noticed three seconds sooner."""
