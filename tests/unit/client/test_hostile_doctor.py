"""`doctor` beside jobs that make no sense or mean harm: a template is whatever its author likes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticjob_client import Jobs
from elasticjob_client.explain.status import next_steps
from elasticjob_client.explain.template import checks
from tests.unit.client.conftest import body
from tests.unit.client.made import NOW, conditions, job, pod
from tests.unit.client.server import JOBS, Server

LONGEST = 2_000
"""Letters of one check: a screen shows them."""
WORDS = (
    "torchrun", "sh", "-c", "python3", "-m", "torch.distributed.run", "PYTHONPATH=", "--nnodes", "=", "",
    "python3." + "9" * 5_000, "torch:2." + "9" * 5_000, "\x1b]0;t\x07", "nvidia.com/gpu", "9" * 5_000, "²",
    "1e99999999",
)  # fmt: skip
KEYS = (
    "spec", "metadata", "annotations", "containers", "name", "image", "command", "args", "resources",
    "limits", "requests", "nvidia.com/gpu", "kubectl.kubernetes.io/default-container", "volumes",
    "persistentVolumeClaim", "claimName", "env", "envFrom", "initContainers",
    "claims", "resourceClaims", "resourceClaimTemplateName", "resourceClaimName", "request",
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(WORDS)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)
CONTAINER = st.fixed_dictionaries(
    {},
    optional={
        "name": ANYTHING, "image": ANYTHING, "command": ANYTHING, "args": ANYTHING, "resources": ANYTHING
    },
)  # fmt: skip
SPEC = st.fixed_dictionaries(
    {}, optional={"containers": st.lists(CONTAINER | ANYTHING, max_size=3) | ANYTHING, "volumes": ANYTHING}
)
TEMPLATE = st.fixed_dictionaries({}, optional={"spec": SPEC | ANYTHING, "metadata": ANYTHING})
WAITS = pod("mnist-0-0", "Pending", waiting="Unschedulable: pod has unbound immediate PersistentVolumeClaims")


@given(TEMPLATE, st.sampled_from([None, 2, 2**60, "gpu", "9" * 5_000, "auto"]))
@settings(max_examples=300, deadline=None)
def test_whatever_the_template_is_something_is_said(template: dict[str, Any], processes: Any) -> None:
    waiting = {"conditions": conditions("WaitingForPods", "0 of 2")}
    for status in (None, waiting):
        asked = job(status, template=template, **({} if processes is None else {"nprocPerNode": processes}))
        found = checks(asked, [WAITS], ["No module named 'torch'" + "x" * 100_000])
        assert found
        assert all(len(one.found) + len(one.advice) < LONGEST for one in found)
        next_steps(asked, [WAITS], NOW)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "container",
    [
        {"command": ["sh", "-c", "torchrun " + "PYTHONPATH=" * 100_000 + "$PYTHONPATH"]},
        {"command": ["torchrun", *["--rdzv_backend=k8s"] * 50_000]},
        {"command": ["torchrun"], "image": "py3" * 400_000},
        {"resources": {"limits": {f"example.com/r{n}": "1" for n in range(50_000)}}},
    ],
    ids=["a path", "flags", "an image", "resources"],
)
def test_a_template_of_a_megabyte_holds_nobody_up(container: dict[str, Any]) -> None:
    asked = job(None, template={"spec": {"containers": [{"name": "t", "image": "i:1", **container}]}})
    assert all(len(one.found) + len(one.advice) < LONGEST for one in checks(asked, []))


def test_a_job_that_cannot_be_read_hides_no_other(server: Server, run: Callable[..., Result]) -> None:
    odd = {**body(), "metadata": {**body()["metadata"], "name": "odd"}, "spec": {"replicas": "many"}}
    server.answers[JOBS]["items"] = [odd, body()]
    result = run("list", "-o", "json")
    assert [row["name"] for row in json.loads(result.stdout)["items"]] == ["mnist"]
    assert (
        "ElasticJob research/odd is left out: not an ElasticJob as elasticjob.dev/v1alpha1" in result.stderr
    )
    said = list[str]()
    with Jobs(notice=said.append) as jobs:
        assert [one.name for one in jobs.all()] == ["mnist"]
    assert len(said) == 1
