"""The sentences that a waiting agent writes to its log: what is missing, and what to do.

Pure: they follow from the settings, the latest record and the latest error.
"""

from __future__ import annotations

import re

from elasticjob.agent import peer_messages
from elasticjob.agent.settings import Settings
from elasticjob.contract import names
from elasticjob.contract.reports import FailureReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Stop

_MISSING_RIGHT = re.compile(r"\bUser \"[^\"]*\" cannot ")
"""How the API server says that no Role grants a request. A quota, a namespace that is being deleted and a
proxy on the way answer with 403, too."""


def waiting(s: Settings, record: RoundRecord | None, error: str, seconds: float) -> str:
    """Names what this participant waits for."""
    if error:
        return f"waiting for the API server: {error}"
    if s.peers:
        return peer_messages.waiting(s, record, seconds)
    if record is None:
        return (
            f"waiting for the operator, for {seconds:.0f} s so far: {names.round_object(s.job)} in namespace "
            f"{s.namespace} has no round record. Check that the ElasticJob {s.job} exists "
            "and that the operator runs (kubectl get pods -A -l app.kubernetes.io/name=elasticjob)"
        )
    why = record.waiting_message or "this pod has joined, but the operator has not selected it yet"
    return f"waiting for round {record.number + 1}: {why}"


def over(s: Settings, stop: Stop, trained: bool) -> str:
    """The job is over, complete or not. ``trained``: this agent has been in a round."""
    text = f"the job {'is complete' if stop.complete else 'has failed'}: {stop.message}"
    return f"{text}. {peer_messages.over(s, trained)}" if s.peers else text


def no_job(s: Settings) -> str:
    """There is no such ElasticJob, or no such resource."""
    return (
        f"there is no ElasticJob {s.job} in namespace {s.namespace}, or the resource definition is not "
        "installed. Apply it first, or correct --rdzv-endpoint. To list the jobs: "
        f"kubectl -n {s.namespace} get ej. Without an operator the pods can form rounds themselves: "
        "--rdzv-conf=rounds=peers"
    )


def not_granted(s: Settings, error: str, seconds: float) -> str:
    """Rights are missing, and the operator may still grant them; or something else refuses."""
    if _no_right_is_missing(error):
        return f"waiting for the API server, which has refused requests for {seconds:.0f} s so far: {error}"
    return (
        f"waiting for the operator to grant this pod its rights, for {seconds:.0f} s so far. Check that the "
        "operator runs (kubectl get pods -A -l app.kubernetes.io/name=elasticjob), that the ElasticJob "
        f"{s.job} exists in namespace {s.namespace}, and that this pod has the label "
        f"elasticjob.dev/job-name={s.job}. The API server says: {error}"
    )


def is_denial(error: str) -> bool:
    """Whether a 403 comes from an admission policy or webhook: no right that is granted later changes it."""
    return "denied request" in error or "denied the request" in error


def forbidden(s: Settings, error: str, seconds: float) -> str:
    """The API server refuses, and the wait was long enough: rights are missing, or it is something else."""
    if s.peers and is_denial(error):
        return peer_messages.denied(s, error, seconds)
    if _no_right_is_missing(error):
        return _refused(s, error, seconds)
    if s.peers:
        return peer_messages.not_granted(s, error, seconds)
    return (
        f"the API server has denied access for {seconds:.0f} s: {error}. This pod must be allowed to get "
        f"and watch {names.round_object(s.job)} and to create and patch Lease {s.pod} in namespace "
        f"{s.namespace}. Check that the ElasticJob exists (kubectl -n {s.namespace} get ej {s.job}), "
        "that the operator runs (it creates the Role), and that the RoleBinding names the pod's service "
        "account"
    )


def _no_right_is_missing(error: str) -> bool:
    return not is_denial(error) and not _MISSING_RIGHT.search(error)


def _refused(s: Settings, error: str, seconds: float) -> str:
    refused = f"the API server has refused this pod's requests for {seconds:.0f} s: {error}. "
    if "exceeded quota" in error:
        run = "A run without an operator needs one Lease for itself and one"
        needs = run if s.peers else "A Lease is needed"
        return refused + (
            f"{needs} for each pod in namespace {s.namespace}. A pod that has failed and is kept has one, "
            "too. Raise the quota's count/leases.coordination.k8s.io, or delete pods that have ended"
        )
    return refused + "This does not say that a right is missing: a Role would not help"


def unreported(failure: FailureReport) -> str:
    """Comes before the reason why this agent gives up: a failure that it could not report."""
    return f"a worker failed in round {failure.round_number} ({failure.message[:100]}), and "


def unauthorized(s: Settings, error: str, seconds: float) -> str:
    """The token is not accepted, and kubelet has had the time to replace it."""
    return (
        f"the API server has rejected this pod's token for {seconds:.0f} s: {error}. Check whether the pod "
        f"{s.pod} or its service account was deleted (kubectl -n {s.namespace} get pod {s.pod}; "
        f"kubectl -n {s.namespace} get serviceaccounts), or the API server's signing keys were changed. "
        "The kubelet renews a token only when it has nearly expired; a new pod gets a new one at once"
    )
