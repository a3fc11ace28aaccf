"""What an agent that waits, or gives up waiting, says to whoever reads its log: what is wrong, what to do.

Pure: sentences from settings, the latest record and the latest trouble.
"""

from __future__ import annotations

from elasticjob.contract import names
from elasticjob.contract.records import RoundRecord
from elasticjob.settings import Settings


def waiting(s: Settings, record: RoundRecord | None, trouble: str, seconds: float) -> str:
    """For whom or what this participant has waited so long."""
    if trouble:
        return f"waiting for the API server: {trouble}"
    if record is None:
        return (
            f"waiting for {seconds:.0f} s for the operator: {names.round_object(s.job)} in namespace "
            f"{s.namespace} has no round record. Check that the ElasticJob {s.job} exists "
            "and that the operator runs (kubectl get pods -A -l app.kubernetes.io/name=elasticjob)"
        )
    why = record.waiting or "this pod has joined, the operator has not chosen it yet"
    return f"waiting for round {record.number + 1}: {why}"


def no_job(s: Settings) -> str:
    """There is no such ElasticJob, or no such resource."""
    return (
        f"there is no ElasticJob {s.job} in namespace {s.namespace}, or the resource is not "
        "installed: apply it first, or correct --rdzv-endpoint; see: "
        f"kubectl -n {s.namespace} get ej"
    )


def not_granted(s: Settings, trouble: str, seconds: float) -> str:
    """Rights are missing, and whoever grants them may still come."""
    return (
        f"waiting for {seconds:.0f} s for the operator to grant this pod its rights: is it running "
        "(kubectl get pods -A -l app.kubernetes.io/name=elasticjob), is there an ElasticJob "
        f"{s.job} in namespace {s.namespace}, and has this pod the label elasticjob.dev/job-name={s.job}? "
        f"The API server says: {trouble}"
    )


def is_denial(trouble: str) -> bool:
    """Whether a 403 is an admission policy's or webhook's word: no right that is granted later changes it."""
    return "denied request" in trouble or "denied the request" in trouble


def forbidden(s: Settings, trouble: str, seconds: float) -> str:
    """Rights are missing, and the wait for them was long enough."""
    return (
        f"the API server has refused for {seconds:.0f} s: {trouble}. This pod must be allowed to get and "
        f"watch {names.round_object(s.job)} and to create and patch Lease {s.pod} in namespace "
        f"{s.namespace}. Does the ElasticJob exist (kubectl -n {s.namespace} get ej {s.job}), "
        "is the operator running (it makes the Role), and does the pod's service account have the "
        "RoleBinding?"
    )


def unauthorized(s: Settings, trouble: str, seconds: float) -> str:
    """The token is not accepted, and kubelet has had the time to replace it."""
    return (
        f"the API server has not accepted this pod's token for {seconds:.0f} s: {trouble}. Were the pod "
        f"{s.pod} or its service account deleted (kubectl -n {s.namespace} get pod {s.pod}; "
        f"kubectl -n {s.namespace} get serviceaccounts), or were the API server's signing keys changed? "
        "kubelet writes a new token only when the old one has nearly expired; a new pod gets one at once"
    )
