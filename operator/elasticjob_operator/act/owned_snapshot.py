"""What all jobs own beside their pods, read in four lists instead of four writes for each job.

These objects may have been changed or deleted, or written by a previous operator. Objects that already are as
this operator would write them are not written again. A snapshot is taken when an operator begins to lead, and
about every five minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act import access, network
from elasticjob_operator.act.job_state import OwnedState
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.observe.client import Api, Json
from elasticjob_operator.observe.errors import Forbidden
from elasticjob_operator.observe.lists import read_list
from elasticjob_operator.observe.objects import first_owner_of
from elasticjob_operator.plan.state.model import Job

_KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ServiceAccount": ("/api/v1{}/serviceaccounts", ()),
    "Role": ("/apis/rbac.authorization.k8s.io/v1{}/roles", ("rules",)),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1{}/rolebindings", ("roleRef", "subjects")),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1{}/networkpolicies", ("spec",)),
}
"""Where each kind is listed, and the fields that the operator writes."""

Objects = Mapping[str, Mapping[str, Any]]
"""By kind: the fields of the one object of that kind that a job owns."""

log = logging.getLogger(__name__)


class OwnedSnapshot:
    """What was there at some time from ``began`` on."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
        """By the owner's UID and the object's name."""

    def take(self, kind: str, raw: Json) -> None:
        """An object of a list."""
        meta = raw["metadata"]
        fields = {name: raw.get(name) for name in _KINDS[kind][1]}
        self._found.setdefault((first_owner_of(meta), str(meta["name"])), {})[kind] = fields

    def compare(self, job: Job, owned: OwnedState, reading: list[access.Rule]) -> None:
        """Remember of the job's objects what is there. What was written since is not known better by this."""
        if owned.written_at >= self.began:
            return
        objects: Objects = self._found.get((job.uid, job_identity(job)), {})
        owned.access = access.found(job, objects, reading)
        if owned.access is not None:
            owned.granted = frozenset(owned.access.pod_names)
        owned.network_policy = network.found(job, objects)


async def list_owned(api: Api, namespace: str, clock: Callable[[], float]) -> OwnedSnapshot:
    """Take a snapshot. Without the right to, nothing is found, and all is written again. Raises ApiError."""
    result = OwnedSnapshot(clock())
    scope = f"/namespaces/{namespace}" if namespace else ""
    query = {"labelSelector": JOB_LABEL}

    def taking(kind: str) -> Callable[[Json], None]:
        return lambda raw: result.take(kind, raw)

    for kind, (path, _) in _KINDS.items():
        try:
            await read_list(api, path.format(scope), taking(kind), query)
        except Forbidden as error:
            log.warning("cannot list the %s of jobs, so all of them are rewritten: %s", kind, error)
    return result
