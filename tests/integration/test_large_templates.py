"""One tenant's jobs have the largest templates that the API server accepts: the operator's memory, its start
and another job do not suffer."""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob_operator.observe.packed_template import MAX_TEMPLATE_BYTES
from tests.e2e.job import Operator
from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.slow, pytest.mark.timeout(1200)]

DEADLINE = 300.0
FIRST, MORE = 20, 140
"""Jobs of each kind: the first cost the price of reading one; what those after them add is per job."""
WORDS = 40_000
"""Of a command: 200 KB, and as Python objects 2.4 MB. Larger ones would cost the API server minutes."""
JOBS, LIMIT_MEBIBYTES = 1_000, 512.0
"""So many, half of each kind, must fit into the chart's limit. As Python objects they have 1.2 GiB."""


def peak(operator: Operator) -> float:
    """Its most memory so far, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{operator.process.pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def suspended(name: str, args: list[str]) -> dict[str, Any]:
    container = {"name": "train", "image": "none", "args": args}
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "suspend": True, "template": {"spec": {"containers": [container]}}},
    }


def test_jobs_with_the_largest_templates_take_little_memory(
    installed: Cluster, namespace: str, tmp_path: Path
) -> None:
    jobs = f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs"

    def create(job: dict[str, Any]) -> None:
        answer = installed.api.request("POST", jobs, job, timeout=120.0)
        assert answer.ok, answer.text[:1000]

    operator = Operator(installed, namespace, tmp_path / "operator.log")
    try:
        PlayedJob(installed, namespace, "before").apply(replicas=1)
        PlayedJob(installed, namespace, "before").runs("before-0-0")
        alone = peak(operator)
        letters, chance = string.ascii_letters + string.digits, random.Random(31)

        def told(number: int) -> bool:
            found = installed.kubectl(
                *("-n", namespace, "get", "events", "-o", "json"),
                "--field-selector=reason=TemplateTooLarge",
            ).stdout
            names = {event["involvedObject"]["name"] for event in json.loads(found)["items"]}
            return names == {f"large-{index}" for index in range(number)}

        def grow(first: int, end: int) -> float:
            for number in range(first, end):
                create(suspended(f"large-{number}", ["ab"] * WORDS))
                noise = "".join(chance.choices(letters, k=MAX_TEMPLATE_BYTES - 500))
                create(suspended(f"largest-{number}", [noise]))
            wait_for(lambda: told(end), DEADLINE, "each job that is too large has an Event", interval=1.0)
            names = [f"ej/largest-{number}" for number in range(end)]
            installed.kubectl("-n", namespace, "wait", *names, "--for=condition=Suspended", "--timeout=300s")
            return peak(operator)

        few = grow(0, FIRST)
        many = grow(FIRST, FIRST + MORE)
        operator.kill()
        operator.restart()
        PlayedJob(installed, namespace, "after").apply(replicas=1)
        PlayedJob(installed, namespace, "after").runs("after-0-0")
        again = peak(operator)
    finally:
        operator.stop()
        print(operator.log.read_text()[-4000:])
    print(f"alone {alone:.0f} MiB, beside the first {few:.0f}, beside all {many:.0f}, restarted {again:.0f}")
    per_job = (max(many, again) - few) / (2 * MORE)
    assert few + per_job * (JOBS - 2 * FIRST) < LIMIT_MEBIBYTES
