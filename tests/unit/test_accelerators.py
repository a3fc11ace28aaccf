"""How many workers a pod gets where the job does not say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from elasticjob.contract.devices import Claims
from elasticjob_operator.plan.state.model import Job, JobSpec
from elasticjob_operator.plan.template.accelerators import claim_templates, nproc_per_node, uncounted

RESOURCES = [
    ("nvidia.com/gpu", 8, "gpu", False),
    ("nvidia.com/gpu", "1", "gpu", False),
    ("nvidia.com/gpu", "8e0", "gpu", False),
    ("nvidia.com/gpu", "1k", "gpu", False),
    ("nvidia.com/gpu", 0, "1", False),
    ("nvidia.com/gpu", "0", "1", False),
    ("nvidia.com/gpu", "0.0", "1", False),
    ("nvidia.com/gpu", "0k", "1", False),
    ("amd.com/gpu", 0, "1", False),
    ("amd.com/gpu", 2, "gpu", False),
    ("nvidia.com/mig-1g.5gb", 1, "gpu", False),
    ("nvidia.com/mig-1g.5gb", 0, "1", False),
    ("nvidia.com/mig-1g.5gb.shared", 1, "gpu", False),
    ("nvidia.com/gpu.shared", 2, "gpu", False),
    ("nvidia.com/gpu.shared", 0, "1", False),
    ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", 2, "gpu", False),
    ("deviceclass.resource.kubernetes.io/a100", 2, "1", True),
    ("nvidia.com/a100", 2, "1", True),
    ("nvidia.com/gpumem", 3000, "1", True),
    ("amd.com/cpx_nps4", 1, "1", True),
    ("gpu.intel.com/i915", 1, "1", True),
    ("gpu.intel.com/xe", 0, "1", False),
    ("habana.ai/gaudi", 8, "1", True),
    ("aws.amazon.com/neuron", 1, "1", True),
    ("google.com/tpu", 4, "1", True),
    ("huawei.com/Ascend910", 8, "1", True),
    ("volcano.sh/vgpu-number", 1, "1", True),
    ("rdma/hca", 1, "1", False),
    ("nvidia.com/hostdev", 8, "1", False),
    ("vpc.amazonaws.com/efa", 4, "1", False),
    ("cpu", 8, "1", False),
]
"""A resource, its quantity, the workers in each pod, and whether a sentence says that it is not counted."""


def a_job(nproc: str | None = None, claims: list[Mapping[str, Any]] | None = None, **container: Any) -> Job:
    spec: dict[str, Any] = {"containers": [{"name": "train", **container}]}
    if claims is not None:
        spec["resourceClaims"] = claims
    return Job("team", "job", "uid", 1, JobSpec(template={"spec": spec}, nproc_per_node=nproc))


def nproc(job: Job, claims: Claims | None = None) -> str:
    (container,) = (job.spec.template or {})["spec"]["containers"]
    return nproc_per_node(job, container, claims or {})


@pytest.mark.parametrize("where", ["limits", "requests"])
@pytest.mark.parametrize(("resource", "quantity", "expected", "said"), RESOURCES)
def test_a_resource_counts_by_its_quantity(
    resource: str, quantity: object, expected: str, said: bool, where: str
) -> None:
    job = a_job(resources={where: {resource: quantity, "memory": "1Gi"}})
    assert nproc(job) == expected
    assert bool(uncounted(job, {})) == said
    if said:
        assert f"GPUs of resource {resource} cannot be counted; set nprocPerNode" in uncounted(job, {})
    assert uncounted(a_job("1", resources={where: {resource: quantity}}), {}) == ""


def test_beside_gpus_that_are_counted_others_are_not_mentioned() -> None:
    job = a_job(resources={"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}})
    assert (nproc(job), uncounted(job, {})) == ("gpu", "")


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "PET_NPROC_PER_NODE", "value": "2"}]},
        {"envFrom": [{"configMapRef": {"name": "settings"}}]},
        {"command": ["torchrun", "--nproc_per_node=2", "train.py"]},
        {"command": ["sh", "-c", "PET_NPROC_PER_NODE=2 torchrun train.py"]},
    ],
)
def test_a_container_that_says_how_many_needs_no_word(container: dict[str, Any]) -> None:
    resources = {"limits": {"habana.ai/gaudi": 8}}
    assert uncounted(a_job(resources=resources), {})
    assert uncounted(a_job(resources=resources, **container), {}) == ""


CLAIM = {"name": "gpus", "resourceClaimTemplateName": "eight"}
USED = {"claims": [{"name": "gpus"}]}


@pytest.mark.parametrize(
    ("requests", "used", "expected", "said"),
    [
        ({"gpus": ("gpu.nvidia.com",)}, {}, "gpu", ""),
        ({"gpus": ("mig.nvidia.com", "gpu.nvidia.com")}, {}, "gpu", ""),
        ({"gpus": ("gpu.nvidia.com",), "nics": ("rdma",)}, {}, "gpu", ""),
        ({"gpus": ("gpu.nvidia.com",), "nics": ("rdma",)}, {"request": "gpus"}, "gpu", ""),
        ({"gpus": ("gpu.nvidia.com", "mig.nvidia.com")}, {"request": "gpus/first"}, "gpu", ""),
        ({"gpus": ("gpu.nvidia.com",), "nics": ("rdma",)}, {"request": "nics"}, "1", "(device class rdma)"),
        ({"gpus": ("h100",)}, {}, "1", "(device class h100)"),
        ({"gpus": ("gpu.nvidia.com", "cpu")}, {}, "1", "(device class gpu.nvidia.com, cpu)"),
        ({"watch": None}, {}, "1", None),
        ({}, {}, "1", None),
        (None, {}, "1", "ResourceClaimTemplate eight cannot be counted"),
    ],
)
def test_a_claim_counts_by_its_template(
    requests: dict[str, tuple[str, ...]] | None, used: dict[str, str], expected: str, said: str | None
) -> None:
    job = a_job(claims=[CLAIM], resources={"claims": [{"name": "gpus", **used}]})
    claims = {"eight": requests}
    assert nproc(job, claims) == expected
    found = uncounted(job, claims)
    assert (said in found and bool(found) == bool(said)) if said is not None else found == ""


def test_a_claim_that_is_shared_cannot_be_counted() -> None:
    job = a_job(claims=[{"name": "gpus", "resourceClaimName": "all"}], resources=USED)
    assert nproc(job) == "1"
    assert "GPUs of ResourceClaim all cannot be counted" in uncounted(job, {})


def test_which_templates_are_read() -> None:
    """Those of the training container, unless the job says how many workers it wants."""
    assert claim_templates(a_job(claims=[CLAIM], resources=USED)) == {"eight"}
    assert claim_templates(a_job("8", claims=[CLAIM], resources=USED)) == frozenset()
    assert claim_templates(a_job(claims=[CLAIM])) == frozenset()
    assert claim_templates(Job("team", "job", "uid", 1, JobSpec())) == frozenset()
    assert uncounted(a_job(claims=[CLAIM], resources=USED), {}) == "", "it is still to be read"


@pytest.mark.parametrize(
    "resources",
    ["?", {"limits": [1], "claims": "?"}, {"claims": [1, {"name": {}}, {}], "requests": {"a/gpu": {}}}],
)
def test_anything_is_read(resources: Any) -> None:
    assert nproc(a_job(resources=resources)) == "1"
    uncounted(a_job(resources=resources), {})
