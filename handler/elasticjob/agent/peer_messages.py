"""What an agent says in a run without operator, where it says something else than in an operator's job.
Pure."""

from __future__ import annotations

import re

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


def over(s: Settings, trained: bool) -> str:
    """No pod trains in this run any more."""
    so = "" if trained else ", and this torchrun has trained nothing"
    return f"Run {s.job_uid} of {s.job} is over{so}: another run needs another --rdzv-id"


def not_granted(s: Settings, error: str, seconds: float) -> str:
    """What to hand to those who may grant the rights."""
    user = _ACCOUNT.search(error)
    account = user[2] if user is not None else UNKNOWN_ACCOUNT
    shared = " (all other pods use it, too: better give these pods one of their own)"
    return (
        f"the API server has denied access for {seconds:.0f} s: {error}. Without an operator, the pods' "
        f"service account {account}{shared if account == 'default' else ''} needs a Role in namespace "
        f"{s.namespace}. An admin of the namespace applies this once "
        "(docs/use/without-an-operator.md):\n"
        + manifest(s.namespace, account, user[1] if user is not None else s.namespace)
    )


def denied(s: Settings, error: str, seconds: float) -> str:
    """An admission policy or webhook refuses: no Role changes that."""
    return (
        f"the API server has denied access for {seconds:.0f} s: {error}. An admission policy or webhook of "
        f"the cluster refuses what a run without an operator writes into Leases of namespace {s.namespace}: "
        "ask the administrators of the cluster to let it through (docs/use/without-an-operator.md says "
        "what pods write)"
    )


def manifest(namespace: str, account: str, accounts_namespace: str) -> str:
    """The Role, and the RoleBinding to the service account. The pods are optional: with them the end of
    one is noticed at once, not by heartbeats."""
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: torchrun-peers, namespace: "{namespace}"}}
rules:
- {{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, patch]}}
- {{apiGroups: [""], resources: [pods], verbs: [get, list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: torchrun-peers, namespace: "{namespace}"}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: torchrun-peers}}
subjects:
- {{kind: ServiceAccount, name: "{account}", namespace: "{accounts_namespace}"}}
"""


UNKNOWN_ACCOUNT = "SERVICE-ACCOUNT-OF-THE-PODS"
"""Stands in the manifest where the API server has not said who asked."""
_ACCOUNT = re.compile(r"\bsystem:serviceaccount:([a-z0-9-]+):([a-z0-9.-]*[a-z0-9])")
