"""How a pod names its PodGroup (``spec.gangScheduling``): each kind of scheduler looks in another place.

The names are those of sigs.k8s.io/scheduler-plugins 0.35.4 (``apis/scheduling/v1alpha1/types.go``) and
volcano.sh/apis 1.15.1 (``pkg/apis/scheduling/v1beta1/labels.go``).
"""

from __future__ import annotations

from typing import Any

from elasticjob.contract.text import one_line
from elasticjob_operator.plan.state.model import GangScheduling, Job

COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_ANNOTATION = "scheduling.k8s.io/group-name"

_DEFAULT_NAMES = {GangScheduling.KUBERNETES: "default-scheduler", GangScheduling.VOLCANO: "volcano"}
"""The name of the scheduler unless an administrator gives it another. Coscheduling is a plugin: the scheduler
that has it may have any name."""
_MAX_NAME = 100


def join(job: Job, group: str, meta: dict[str, Any], spec: dict[str, Any]) -> None:
    """Put a pod of the job, with these labels and this spec, into the PodGroup."""
    if job.spec.gang_scheduling == GangScheduling.COSCHEDULING:
        meta["labels"][COSCHEDULING_LABEL] = group
    elif job.spec.gang_scheduling == GangScheduling.VOLCANO:
        meta.setdefault("annotations", {})[VOLCANO_ANNOTATION] = group
        spec["schedulerName"] = scheduler_name(job)
    else:
        spec["schedulingGroup"] = {"podGroupName": group}


def scheduler_name(job: Job) -> str:
    """Of the job's pods; "" for Kubernetes' default."""
    named = str(((job.spec.template or {}).get("spec") or {}).get("schedulerName") or "")
    if not named and job.spec.gang_scheduling == GangScheduling.VOLCANO:
        return _DEFAULT_NAMES[GangScheduling.VOLCANO]
    return named


def warnings(job: Job) -> tuple[str, ...]:
    """A sentence if the template names a scheduler of which is not known that it heeds the PodGroup."""
    expected = {str(gang): name for gang, name in _DEFAULT_NAMES.items()}.get(job.spec.gang_scheduling)
    named = scheduler_name(job)
    if expected is None or named in ("", expected):
        return ()
    return (
        f"spec.gangScheduling is {job.spec.gang_scheduling}, and the template's schedulerName is "
        f"{one_line(named, _MAX_NAME)!r}; a scheduler that does not know these PodGroups places the pods one "
        f"by one. Whether this one knows them cannot be seen from here; {expected!r} is the usual name of "
        "one that does",
    )
