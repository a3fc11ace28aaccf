"""The NetworkPolicy of a job: what may connect to its pods.

The TCPStores of a round have no authentication. Any process that connects to one can end the training or read
what its members exchange. With ``JobOnly`` the job's pods accept connections only from each other, on all
ports, because torch chooses its ports itself. Policies add up: to open a port, users add a policy of their
own.

What was written is remembered, as for the Role, so that a pass that changes nothing sends no request. If the
policy is changed, the operator restores it at the next comparison (``owned_snapshot``), within about five
minutes. A job without template has no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act.owned import bring_about, remove
from elasticjob_operator.observe.client import Api
from elasticjob_operator.plan.state.model import Job, NetworkPolicy

_API_VERSION = "networking.k8s.io/v1"


def is_due(job: Job, written: str | None) -> bool:
    """Whether there is something to write; ``written`` is what ``restrict`` last brought about."""
    return job.spec.template is not None and job.spec.network_policy != written


async def restrict(api: Api, job: Job, new: bool = False) -> None:
    """Bring the policy about that the spec names. ``new``: the job has none yet. Raises ApiError."""
    if job.spec.network_policy != NetworkPolicy.JOB_ONLY:
        await remove(api, job, _API_VERSION, "NetworkPolicy")
        return
    await bring_about(api, job, _API_VERSION, "NetworkPolicy", {"spec": _spec(job)}, new)


def found(job: Job, objects: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What the job's objects, by kind, bring about; None where it is nothing that ``restrict`` does."""
    there = objects.get("NetworkPolicy")
    if there is None:
        return NetworkPolicy.NONE.value
    return NetworkPolicy.JOB_ONLY.value if there["spec"] == _spec(job) else None


def _spec(job: Job) -> dict[str, Any]:
    pods = {"matchLabels": {JOB_LABEL: job.name}}
    return {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]}
