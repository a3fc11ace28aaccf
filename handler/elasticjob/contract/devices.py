"""The devices that a container asks for, and whether torch counts them (``--nproc-per-node=gpu``).

The operator chooses the number of workers by it, and ``elasticjob doctor`` judges one that the job sets. An
extended resource is in the template. A claim (dynamic resource allocation) names a ResourceClaimTemplate,
which has to be read. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from elasticjob.contract.lenient import mapping, mappings
from elasticjob.contract.quantity import parse
from elasticjob.contract.text import listed, one_line

Requests = Mapping[str, tuple[str, ...] | None]
"""The requests of a ResourceClaimTemplate and the device classes that each may be satisfied by."""
Claims = Mapping[str, Requests | None]
"""ResourceClaimTemplates by name: None for one that could not be read."""

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
_MOST = 1_000_000
"""A greater number of devices says nothing, and may have any number of digits."""


class Device(NamedTuple):
    """``name``: in words, such as ``resource nvidia.com/gpu``. ``counted``: True if torch counts it, False
    for what may be GPUs that it does not, None for what is unread or is something else. ``number``: how
    many, None if the template does not say it."""

    name: str
    counted: bool | None
    number: int | None = None


def devices(template: Mapping[str, Any], container: Mapping[str, Any], claims: Claims) -> Iterator[Device]:
    """What the container of the pod template has beside CPU and memory and might be GPUs."""
    for name, number in _asked(container).items():
        if name.startswith(_CLASS_RESOURCE):
            yield Device(f"resource {name}", name.removeprefix(_CLASS_RESOURCE) in _CLASSES, number)
        elif _COUNTED.fullmatch(name):
            yield Device(f"resource {name}", True, number)
        elif _MAY_BE_GPUS.search(name) and not _OTHER_DEVICES.match(name):
            yield Device(f"resource {name}", False, number)
    for claim, claim_template, request in claimed(template, container):
        if not claim_template:
            yield Device(f"ResourceClaim {claim}", False)
            continue
        name = f"ResourceClaimTemplate {claim_template}"
        if claim_template not in claims:
            yield Device(name, None)
            continue
        requests = claims[claim_template]
        if requests is None:
            yield Device(name, False)
            continue
        chosen = [classes for one, classes in requests.items() if _takes(request, one)]
        if not chosen:
            yield Device(name, None)
        for classes in chosen:
            if classes is not None:
                of = f" (device class {listed(classes)})" if classes else ""
                yield Device(f"{name}{of}", bool(classes) and set(classes) <= _CLASSES)


def _takes(request: str, one: str) -> bool:
    return request in ("", one) or request.startswith(f"{one}/")


def claimed(template: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The claims of the container: the name of the claim, of its template ("" without one), and of the
    request in it that the container takes ("" for all)."""
    claims = {
        str(claim.get("name")): claim
        for claim in mappings(mapping(template.get("spec")).get("resourceClaims"))
    }
    for used in mappings(mapping(container.get("resources")).get("claims")):
        claim = claims.get(str(used.get("name")), {})
        claim_template = one_line(str(claim.get("resourceClaimTemplateName") or ""), 253)
        name = one_line(str(claim.get("resourceClaimName") or used.get("name") or ""), _MAX_NAME)
        yield name, claim_template, str(used.get("request") or "")


def _asked(container: Mapping[str, Any]) -> dict[str, int | None]:
    """The extended resources that the container asks for, and how many, in any notation of their quantity.
    None: one that the API server refuses, or an absurd one."""
    resources = mapping(container.get("resources"))
    asked: dict[str, int | None] = {}
    for part in ("limits", "requests"):
        for name, quantity in mapping(resources.get(part)).items():
            number = parse(quantity)
            if "/" in str(name) and (number is None or number > 0):
                whole = number is not None and number <= _MOST and number % 1 == 0
                asked.setdefault(one_line(str(name), _MAX_NAME), int(number) if number and whole else None)
    return asked
