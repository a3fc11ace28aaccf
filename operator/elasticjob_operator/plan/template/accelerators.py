"""How many workers a pod gets where the job does not say it: one for each GPU of its training container.

torch counts the GPUs in the pod (``gpu``), so that it is enough to know that there are some. By an extended
resource it is in the template. A claim (dynamic resource allocation) names a ResourceClaimTemplate, which the
operator reads (``act/claims.py``). Where there may be GPUs that torch cannot be trusted to count, each pod
gets one worker, and a sentence says so. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticjob.contract.text import one_line
from elasticjob.rounds.candidates import listed
from elasticjob_operator.plan.state.model import Job
from elasticjob_operator.plan.template import torchrun_flags
from elasticjob_operator.plan.template.containers import container_of
from elasticjob_operator.plan.template.quantity import parse

Requests = Mapping[str, tuple[str, ...] | None]
"""The requests of a ResourceClaimTemplate and the device classes that each may be satisfied by."""
Claims = Mapping[str, Requests | None]
"""ResourceClaimTemplates by name: None for one that could not be read."""

_NPROC = "PET_NPROC_PER_NODE"
_COUNTED = re.compile(r"nvidia\.com/(gpu|mig-[\w.+-]+)(\.shared)?|amd\.com/gpu")
"""Resources of which torch.cuda sees what the container gets, and nothing else."""
_CLASSES = frozenset({"gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com"})
"""Device classes of which it does: those that the drivers of NVIDIA and AMD install."""
_CLASS_RESOURCE = "deviceclass.resource.kubernetes.io/"
_OTHER_DEVICES = re.compile(r"nvidia\.com/(hostdev|mlnx|rdma|sriov|priority)|.*_vf", re.IGNORECASE)
_MAY_BE_GPUS = re.compile(
    r"(nvidia|amd|habana)\.(com|ai)/"
    r"|gpu|cuda|gaudi|neuron|ascend|accelerator|[-./]([tnx]pu|mlu|[dg]cu|i915|xe)$",
    re.IGNORECASE,
)
_MAX_NAME = 100
MAX_TEMPLATES = 8
"""How many ResourceClaimTemplates of one job are read."""


def nproc_per_node(job: Job, container: Mapping[str, Any], claims: Claims) -> str:
    """Worker processes per pod, in torch's words."""
    if job.spec.nproc_per_node is not None:
        return job.spec.nproc_per_node
    return "gpu" if any(counted for _, counted in _devices(job, container, claims)) else "1"


def uncounted(job: Job, claims: Claims) -> str:
    """A sentence if pods get one worker each although they may have more GPUs; else empty."""
    container = container_of(job.spec.template)
    if job.spec.nproc_per_node is not None:
        return ""
    devices = list(_devices(job, container, claims))
    unknown = [name for name, counted in devices if counted is False]
    if not unknown or any(counted for _, counted in devices) or _says_itself(job, container):
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
    named = {template for _, template, _ in _claimed(job, container) if template}
    return frozenset(sorted(named)[:MAX_TEMPLATES])


def _devices(job: Job, container: Mapping[str, Any], claims: Claims) -> Iterator[tuple[str, bool | None]]:
    """What the container has beside CPU and memory, in words, and whether torch counts it: True, False for
    what may be GPUs, None for what is not known yet or is something else."""
    for name in _asked(container):
        if name.startswith(_CLASS_RESOURCE):
            yield f"resource {name}", name.removeprefix(_CLASS_RESOURCE) in _CLASSES
        elif _COUNTED.fullmatch(name):
            yield f"resource {name}", True
        elif _MAY_BE_GPUS.search(name) and not _OTHER_DEVICES.match(name):
            yield f"resource {name}", False
    for claim, template, request in _claimed(job, container):
        if not template:
            yield f"ResourceClaim {claim}", False
            continue
        if template not in claims:
            yield f"ResourceClaimTemplate {template}", None
            continue
        requests = claims[template]
        chosen = (
            None
            if requests is None
            else [
                c for name, c in requests.items() if request in ("", name) or request.startswith(f"{name}/")
            ]
        )
        if not chosen:
            yield f"ResourceClaimTemplate {template}", None if chosen == [] else False
        for classes in chosen or ():
            if classes is not None:
                named = f" (device class {listed(classes)})" if classes else ""
                counted = bool(classes) and set(classes) <= _CLASSES
                yield f"ResourceClaimTemplate {template}{named}", counted


def _asked(container: Mapping[str, Any]) -> list[str]:
    """The extended resources that the container asks for, in any notation of their quantity."""
    resources = _mapping(container.get("resources"))
    asked = [*_mapping(resources.get("limits")).items(), *_mapping(resources.get("requests")).items()]
    names = (one_line(str(name), _MAX_NAME) for name, quantity in asked if "/" in name and _some(quantity))
    return list(dict.fromkeys(names))


def _some(quantity: object) -> bool:
    number = parse(quantity)
    return number is None or number > 0  # the API server refuses an invalid quantity


def _claimed(job: Job, container: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The claims of the container: the name of the claim, of its template ("" without one), and of the
    request in it that the container takes ("" for all)."""
    claims = {
        str(claim.get("name")): claim
        for claim in _mappings(_mapping((job.spec.template or {}).get("spec")).get("resourceClaims"))
    }
    for used in _mappings(_mapping(container.get("resources")).get("claims")):
        claim = claims.get(str(used.get("name")), {})
        template = one_line(str(claim.get("resourceClaimTemplateName") or ""), 253)
        name = one_line(str(claim.get("resourceClaimName") or used.get("name") or ""), _MAX_NAME)
        yield name, template, str(used.get("request") or "")


def _says_itself(job: Job, container: Mapping[str, Any]) -> bool:
    """Whether the container says how many workers it starts, or may, where it is not seen."""
    named = any(entry.get("name") == _NPROC for entry in _mappings(container.get("env")))
    return (
        named
        or bool(container.get("envFrom"))
        or torchrun_flags.judgement(job, container).has("nproc-per-node")
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
