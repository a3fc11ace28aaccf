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
import yaml

from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob_operator.observe.packed_template import MAX_TEMPLATE_BYTES
from tests.e2e.job import ROOT, Operator
from tests.integration.lifecycle_job import PlayedJob

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.slow, pytest.mark.timeout(900)]

DEADLINE = 300.0
TOO_LARGE, LARGEST = 60, 60
WORDS = 200_000
"""Of a command: 12 times their bytes as Python objects. So many entries of an environment would take the API
server minutes."""


def limit_bytes() -> int:
    values = yaml.safe_load((ROOT / "charts/elasticjob/values.yaml").read_text())
    found = re.fullmatch(r"(\d+)Mi", values["resources"]["limits"]["memory"])
    assert found
    return int(found[1]) * 2**20


def peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def suspended(name: str, args: list[str]) -> dict[str, Any]:
    container = {"name": "train", "image": "none", "args": args}
    return {
        "apiVersion": "elasticjob.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "suspend": True, "template": {"spec": {"containers": [container]}}},
    }


def test_jobs_with_the_largest_templates_do_not_exceed_the_memory_limit(
    installed: Cluster, namespace: str, tmp_path: Path
) -> None:
    jobs = f"/apis/elasticjob.dev/v1alpha1/namespaces/{namespace}/elasticjobs"

    def create(job: dict[str, Any]) -> None:
        answer = installed.api.request("POST", jobs, job, timeout=120.0)
        assert answer.ok, answer.text[:1000]

    short = ["ab"] * WORDS
    for number in range(TOO_LARGE):
        create(suspended(f"large-{number}", short))
    letters, chance = string.ascii_letters + string.digits, random.Random(31)
    for number in range(LARGEST):
        noise = "".join(chance.choices(letters, k=MAX_TEMPLATE_BYTES - 500))
        create(suspended(f"largest-{number}", [noise]))

    operator = Operator(installed, namespace, tmp_path / "operator.log")
    try:
        PlayedJob(installed, namespace, "well").apply(replicas=1)
        PlayedJob(installed, namespace, "well").runs("well-0-0")

        def told() -> bool:
            found = installed.kubectl(
                *("-n", namespace, "get", "events", "-o", "json"),
                "--field-selector=reason=TemplateTooLarge",
            ).stdout
            names = {event["involvedObject"]["name"] for event in json.loads(found)["items"]}
            return names == {f"large-{number}" for number in range(TOO_LARGE)}

        wait_for(told, DEADLINE, "each job that is too large has an Event", interval=1.0)
        names = [f"ej/largest-{number}" for number in range(LARGEST)]
        installed.kubectl("-n", namespace, "wait", *names, "--for=condition=Suspended", "--timeout=300s")
        first = peak_bytes(operator.process.pid)
        operator.kill()
        operator.restart()
        PlayedJob(installed, namespace, "after").apply(replicas=1)
        PlayedJob(installed, namespace, "after").runs("after-0-0")
        second = peak_bytes(operator.process.pid)
    finally:
        operator.stop()
        print(operator.log.read_text()[-4000:])
    print(f"peaks: {first / 2**20:.0f} and {second / 2**20:.0f} MiB")
    assert max(first, second) < limit_bytes() / 2, "and these are only some"
