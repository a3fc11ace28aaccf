"""How many workers a pod gets where the job does not say it: one for each GPU of its training container.

torch counts the GPUs in the pod (``gpu``), so that it is enough to know that there are some
(``elasticjob.contract.devices``). Where there may be GPUs that torch cannot be trusted to count, each pod
gets one worker, and a sentence says so. The operator reads the ResourceClaimTemplates (``act/claims.py``).
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.contract.devices import Claims, claimed, devices
from elasticjob.contract.lenient import mappings
from elasticjob.contract.text import listed
from elasticjob_operator.plan.state.model import Job
from elasticjob_operator.plan.template import torchrun_flags
from elasticjob_operator.plan.template.containers import container_of

_NPROC = "PET_NPROC_PER_NODE"
MAX_TEMPLATES = 8
"""How many ResourceClaimTemplates of one job are read."""


def nproc_per_node(job: Job, container: Mapping[str, Any], claims: Claims) -> str:
    """Worker processes per pod, in torch's words."""
    if job.spec.nproc_per_node is not None:
        return job.spec.nproc_per_node
    return "gpu" if any(one.counted for one in devices(job.spec.template or {}, container, claims)) else "1"


def uncounted(job: Job, claims: Claims) -> str:
    """A sentence if pods get one worker each although they may have more GPUs; else empty."""
    container = container_of(job.spec.template)
    if job.spec.nproc_per_node is not None:
        return ""
    found = list(devices(job.spec.template or {}, container, claims))
    unknown = [one.name for one in found if one.counted is False]
    if not unknown or any(one.counted for one in found) or _says_itself(job, container):
        return ""
    return (
        f"each pod runs one worker, because nprocPerNode is not set and GPUs of {listed(unknown)} cannot be "
        "counted; set nprocPerNode (1 if that is right)"
    )


def claim_templates(job: Job) -> frozenset[str]:
    """The ResourceClaimTemplates that have to be read before pods of the job are made."""
    if job.spec.template is None or job.spec.nproc_per_node is not None:
        return frozenset()
    container = container_of(job.spec.template)
    named = {template for _, template, _ in claimed(job.spec.template, container) if template}
    return frozenset(sorted(named)[:MAX_TEMPLATES])


def _says_itself(job: Job, container: Mapping[str, Any]) -> bool:
    """Whether the container says how many workers it starts, or may, where it is not seen."""
    named = any(entry.get("name") == _NPROC for entry in mappings(container.get("env")))
    return (
        named
        or bool(container.get("envFrom"))
        or torchrun_flags.judgement(job, container).has("nproc-per-node")
    )
