"""Fields that documents name are fields of the resource or of records in Leases, or values of the chart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from elasticjob_client.explain.drill import Cost, Takeover
from elasticjob_client.explain.listing import JobRow
from elasticjob_client.explain.report import Report
from elasticjob_client.explain.stacks import Stacks
from elasticjob_client.explain.status import JobStatus
from elasticjob_client.explain.top import TopJob, TopRow
from elasticjob_client.explain.why import Story
from elasticjob_operator.plan.state import status_json
from tests.docs_commands import ROOT, documents
from tests.full_status import full

DOCUMENTS = {str(document.relative_to(ROOT)): document for document in documents()}
OF_OTHERS = {
    "backoffLimit",
    "deletionTimestamp",
    "ignoreDifferences",
    "lastState",
    "podFailurePolicy",
    "podSelector",
}
"""Kubernetes' own, outside a pod's spec, and Argo CD's."""
OF_KUBEFLOW = {
    "backoffLimit",
    "elasticPolicy",
    "mlPolicy",
    "numNodes",
    "numProcPerNode",
    "podGroupPolicy",
    "podTemplateOverrides",
    "priorityClass",
    "pytorchReplicaSpecs",
    "resourcesPerNode",
    "runPolicy",
    "runtimePatches",
    "schedulingPolicy",
}
"""Of PyTorchJob, TrainJob and its runtimes."""
OF_KUEUE = {"externalFrameworks", "queueingStrategy", "recoveryTimeout", "waitForPodsReady"}
OF_COSCHEDULING = {"permitWaitingTimeSeconds"}
"""Of its configuration and its queues."""
OF_THE_PROBES = {"heardSeconds", "loopLagSeconds"}
PATH = re.compile(
    r"(?:(?<=\{\.)|(?<![\w./-]))((?:spec|status)(?:(?:\[[^\]]*\])?\.(?!(?:md|py)\b)[a-zA-Z]+)+)"
)
"""Also in a jsonpath: ``{.status.roundHistory[0].end}``."""
INDEX = re.compile(r"\[[^\]]*\]")
NAME = re.compile(r"`(?:[a-zA-Z]+\.)*([a-z]+(?:[A-Z][a-zA-Z]*)+)(?=[`:=. ])")


def fields(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The paths of a schema's fields, lists' items under the list's name."""
    if "items" in schema:
        yield from fields(schema["items"], path)
    for name, field in schema.get("properties", {}).items():
        below = f"{path}.{name}".lstrip(".")
        yield below
        yield from fields(field, below)


def written(value: object, path: str = "") -> Iterator[str]:
    """The paths of what stands in a JSON."""
    for one in value if isinstance(value, list) else ():
        yield from written(one, path)
    for name, one in value.items() if isinstance(value, dict) else ():
        below = f"{path}.{name}".lstrip(".")
        yield below
        yield from written(one, below)


def keys(values: object) -> Iterator[str]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield name
            yield from keys(value)


CRD = yaml.safe_load((ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml").read_text())
PATHS = set(fields(CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
PATHS |= {f"status.internal.{path}" for path in written(status_json.dump(full(2))["internal"])}
PATHS |= {f"spec.{field}" for field in ("holderIdentity", "renewTime")}  # of a Lease
PATHS |= {path.removeprefix("spec.template.") for path in PATHS}
VALUES = set(keys(yaml.safe_load((ROOT / "charts" / "elasticjob" / "values.yaml").read_text())))
OF_RECORDS = {
    name
    for record in (ROOT / "tests" / "golden" / "records").rglob("*.json")
    for name in keys(json.loads(record.read_text()))
}
OF_COMMANDS = {
    name
    for printed in (Cost, Takeover, JobRow, JobStatus, Report, Stacks, Story, TopJob, TopRow)
    for name in printed.__struct_encode_fields__
}
"""What the command line prints as JSON (tests/unit/client/test_output.py)."""
NAMES = (
    {path.rpartition(".")[2] for path in PATHS}
    | VALUES
    | OF_OTHERS
    | OF_KUBEFLOW
    | OF_KUEUE
    | OF_COSCHEDULING
    | OF_THE_PROBES
    | OF_RECORDS
    | OF_COMMANDS
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_fields_that_a_document_names_are_there(name: str) -> None:
    text = DOCUMENTS[name].read_text()
    assert [path for path in PATH.findall(text) if INDEX.sub("", path) not in PATHS] == []
    assert [field for field in NAME.findall(text) if field not in NAMES] == []


def test_names_are_found_in_a_text() -> None:
    text = "`status.round.gone`, spec.failurePolicy, {.status.gone[*].number} and [status.md](status.md)"
    assert PATH.findall(text) == ["status.round.gone", "spec.failurePolicy", "status.gone[*].number"]
    assert NAME.findall("`rejoinSeconds` and `failurePolicy.maxRestarts: 3`, not `torchrun`") == [
        "rejoinSeconds",
        "maxRestarts",
    ]
