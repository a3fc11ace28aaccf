"""The typed ElasticJob has the fields of the definition, no more and no fewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from elasticjob_client.resource import ElasticJob, Spec, Status
from tests.unit.client.made import after_a_loss

CRD = Path(__file__).parents[3] / "crds" / "elasticjobs.elasticjob.dev.yaml"
SCHEMA = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
LEFT_OUT = {"internal"}


def described(schema: dict[str, Any], path: str = "") -> set[str]:
    """The paths of a schema's fields; those of the pod template are Kubernetes' own."""
    schema = schema.get("items", schema)
    found = set()
    for name, field in schema.get("properties", {}).items():
        if name in LEFT_OUT:
            continue
        found.add(f"{path}{name}")
        if name != "template":
            found |= described(field, f"{path}{name}.")
    return found


def typed(kind: type, path: str = "") -> set[str]:
    """The same of a type."""
    found = set()
    for field in msgspec.structs.fields(kind):
        found.add(f"{path}{field.encode_name}")
        for inner in structs(field.type):
            found |= typed(inner, f"{path}{field.encode_name}.")
    return found


def structs(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [found for one in get_args(annotation) for found in structs(one)]


@pytest.mark.parametrize(("name", "kind"), [("spec", Spec), ("status", Status)])
def test_the_fields_are_those_of_the_definition(name: str, kind: type) -> None:
    assert typed(kind) == described(SCHEMA[name])


def test_what_is_read_can_be_applied_again_without_the_status() -> None:
    body = after_a_loss().to_dict()
    assert body["kind"] == "ElasticJob"
    assert body["spec"] == {"replicas": 2}
    assert set(body) == {"apiVersion", "kind", "metadata", "spec"}


def test_a_field_that_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match=r"Expected `int \| null`, got `str` - at `\$\.spec\.replicas`"):
        ElasticJob.from_dict({"metadata": {"name": "x"}, "spec": {"replicas": "two"}})


def test_fields_of_a_newer_operator_are_ignored() -> None:
    job = ElasticJob.from_dict({"metadata": {"name": "x", "new": 1}, "status": {"newer": {"a": 1}}})
    assert job.status is not None
    assert (job.state, job.ended, job.members) == ("", False, [])
