"""Slims Workloads of Kueue (``kueue.x-k8s.io/v1beta2``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.observe.fields import first_owner_of, kept, mapping, mappings, text_of, version_of
from elasticjob_operator.observe.objects import Seen
from elasticjob_operator.plan.queue.workloads import FINALIZER, Workload

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
API_VERSION = f"{GROUP}/{VERSION}"
JOB_UID_LABEL = f"{GROUP}/job-uid"
EXTRA_LABEL = "elasticjob.dev/extra"
"""Tells an extra from the base."""
_UPDATED = ("labels", "annotations", "nodeSelector", "tolerations")


@dataclass(frozen=True, slots=True)
class SeenWorkload(Seen):
    """A Workload with a job's label. ``job_uid`` says of which job, also where the ``owner`` (its UID) was
    taken off."""

    job_uid: str
    owner: str
    workload: Workload


def workloads_path(namespace: str) -> str:
    """The Workloads of a namespace, or of all ("")."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{API_VERSION}{scope}/workloads"


def read_workload(raw: Mapping[str, Any], _old: SeenWorkload | None = None) -> SeenWorkload:
    """Slim a Workload. Of several pod sets, which are not ours, the first counts."""
    meta = mapping(raw, "metadata")
    labels = mapping(meta, "labels")
    return SeenWorkload(
        namespace=str(meta.get("namespace", "")),
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        job=str(labels.get(JOB_LABEL, "")),
        version=version_of(meta),
        job_uid=kept(str(labels.get(JOB_UID_LABEL, ""))) or "",
        owner=first_owner_of(meta),
        workload=_workload(meta, mapping(raw, "spec"), mapping(raw, "status")),
    )


def _workload(meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> Workload:
    conditions = {str(one.get("type")): one for one in mappings(status, "conditions")}
    true = {kind for kind, one in conditions.items() if one.get("status") == "True"}
    admission = mapping(status, "admission")
    evicted = conditions["Evicted"] if "Evicted" in true else {}
    reserved = bool(admission)
    waits = {} if "QuotaReserved" in true else conditions.get("QuotaReserved", {})
    said = evicted if reserved and evicted else waits
    count = next((one.get("count") for one in mappings(spec, "podSets")), 0)
    priority = spec.get("priority")
    assignments = mappings(admission, "podSetAssignments")
    return Workload(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        extra=EXTRA_LABEL in mapping(meta, "labels"),
        count=count if isinstance(count, int) else 0,
        version=version_of(meta),
        queue=str(spec.get("queueName", "")),
        priority_class=str(mapping(spec, "priorityClassRef").get("name", "")),
        priority=priority if isinstance(priority, int) else 0,
        active=spec.get("active") is not False,
        reserved=reserved,
        admitted="Admitted" in true,
        evicted=text_of(evicted.get("reason")),
        finished="Finished" in true,
        deleting=bool(meta.get("deletionTimestamp")),
        kept=FINALIZER in (meta.get("finalizers") or ()),
        ready="PodsReady" in true,
        flavors=tuple(sorted({str(v) for one in assignments for v in mapping(one, "flavors").values()})),
        updates=_updates(status),
        message=text_of(said.get("message")),
    )


def _updates(status: Mapping[str, Any]) -> str:
    """What admission checks ask of pods, in their order, as JSON; "" for nothing."""
    found = [
        {field: update[field] for field in _UPDATED if update.get(field)}
        for check in mappings(status, "admissionChecks")
        for update in mappings(check, "podSetUpdates")
    ]
    asked = [update for update in found if update]
    return json.dumps(asked, sort_keys=True) if asked else ""
