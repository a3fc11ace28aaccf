"""What the pods of a job may write: the job's ServiceAccount, Role and RoleBinding.

A pod's identity may read the job's round Lease and its member list, and write the Leases that have the names
of the job's pods (docs/operate/permissions.md); an admission policy in the chart narrows the latter to the
pod's own name. What was written is remembered, so that a pass that changes nothing sends no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.contract.names import round_lease
from elasticjob_operator.act.owned import bring_about
from elasticjob_operator.act.template import job_identity, service_account
from elasticjob_operator.observe.client import Api
from elasticjob_operator.plan.state.model import Job

_RBAC = "rbac.authorization.k8s.io/v1"
_ROUND_ENDING = round_lease("")

Rule = dict[str, Any]
"""One rule of a Role."""


@dataclass(frozen=True)
class Access:
    """What the job's pods may do, as plain data: equal means that nothing is to be written."""

    own_account: bool
    subjects: tuple[str, ...]
    pod_names: tuple[str, ...]

    def includes(self, other: Access) -> bool:
        """Whether this access includes the other."""
        return (
            self.own_account == other.own_account
            and set(self.subjects) >= set(other.subjects)
            and set(self.pod_names) >= set(other.pod_names)
        )


def access_of(job: Job, pod_names: tuple[str, ...], accounts_seen: tuple[str, ...]) -> Access:
    """The access that a job needs. ``accounts_seen`` are the service accounts of its pods: they count for
    a job without template, whose pods the operator does not create. Their creator chooses the names: a name
    that could be a round Lease's, of this job or another, gives no right."""
    names = tuple(sorted(name for name in pod_names if not name.endswith(_ROUND_ENDING)))
    if job.spec.template is None:
        return Access(own_account=False, subjects=accounts_seen, pod_names=names)
    theirs = service_account(job)
    if theirs is None:
        return Access(own_account=True, subjects=(job_identity(job),), pod_names=names)
    return Access(own_account=False, subjects=(theirs,), pod_names=names)


def found(job: Job, objects: Mapping[str, Mapping[str, Any]], reading: list[Rule]) -> Access | None:
    """The access that the job's objects give, by kind; None unless they are as this operator writes them."""
    there = objects.get("Role")
    if there is None:
        return None
    try:
        names = next(
            (tuple(rule["resourceNames"]) for rule in there["rules"] if "patch" in rule["verbs"]), ()
        )
        bound = objects.get("RoleBinding")
        subjects = () if bound is None else tuple(subject["name"] for subject in bound["subjects"])
    except (KeyError, TypeError):
        return None
    access = Access("ServiceAccount" in objects, subjects, names)
    same = there["rules"] == rules(access, reading) and (bound is None or bound == _binding(job, access))
    return access if same else None


async def grant(
    api: Api, job: Job, access: Access, written: Access | None, reading: list[Rule], new: bool = False
) -> None:
    """Bring the objects up to date with ``access``; ``written`` is what this process last wrote. ``reading``:
    the rules by which pods read the round. ``new``: the job has none yet."""
    if access == written:
        return
    writes = []
    if access.own_account and (written is None or not written.own_account):
        writes.append(bring_about(api, job, "v1", "ServiceAccount", {}, new))
    if written is None or written.pod_names != access.pod_names:
        writes.append(bring_about(api, job, _RBAC, "Role", {"rules": rules(access, reading)}, new))
    for outcome in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome  # of several the first by kind: whichever was quicker, people read the same
    if access.subjects and (written is None or written.subjects != access.subjects):
        # Last: without being an administrator one can bind only a role that exists.
        await bring_about(api, job, _RBAC, "RoleBinding", _binding(job, access), new)


def rules(access: Access, reading: list[Rule]) -> list[Rule]:
    """The rules of the job's Role."""
    write = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": list(access.pod_names),
        "verbs": ["get", "create", "patch"],
    }
    # Without names a rule would be for every Lease of the namespace.
    return [*reading, write] if access.pod_names else reading


def _binding(job: Job, access: Access) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": job_identity(job)},
        "subjects": [
            {"kind": "ServiceAccount", "name": account, "namespace": job.namespace}
            for account in access.subjects
        ],
    }
