"""The CRD file by itself: every field explained, small enough, and in the words of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from crds import generate
from elasticjob.contract import names
from elasticjob.contract.records import Outcome, Phase
from elasticjob_operator.plan.status import (
    Account,
    Charge,
    Condition,
    Failure,
    JobStatus,
    Named,
    ParticipantStatus,
    RoundHistory,
    RoundStatus,
)

CRD: dict[str, Any] = yaml.safe_load(generate.CRD_FILE.read_text())
VERSION: dict[str, Any] = CRD["spec"]["versions"][0]
ROOT: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]
STATUS: dict[str, Any] = ROOT["properties"]["status"]


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All fields below ``schema`` with their paths; the pod template's own are Kubernetes' business."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        if f"{path}.{name}" != "spec.template":
            yield from fields(field, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


FIELDS = {
    path: field for part in ("spec", "status") for path, field in fields(ROOT["properties"][part], part)
}
OURS = [*ROOT["properties"].items(), *FIELDS.items()]


@pytest.mark.parametrize("path", [path for path, _ in OURS if path != "metadata"])
def test_kubectl_explain_has_something_to_say(path: str) -> None:
    description = dict(OURS)[path]["description"]
    assert description.endswith(".")


def test_it_fits_into_the_annotation_of_a_client_side_apply() -> None:
    assert len(json.dumps(CRD)) < 200_000


def test_names_are_those_of_the_contract() -> None:
    assert CRD["metadata"]["name"] == f"{names.PLURAL}.{names.GROUP}"
    assert CRD["spec"]["group"] == names.GROUP
    assert CRD["spec"]["names"]["kind"] == names.KIND
    assert VERSION["name"] == names.VERSION
    assert f"{names.MAX_JOB_NAME_LENGTH}" in ROOT["x-kubernetes-validations"][0]["rule"]


def test_phases_are_those_of_the_contract() -> None:
    assert FIELDS["status.round.phase"]["enum"] == [phase.value for phase in Phase]
    for outcome in Outcome:
        assert outcome.value in FIELDS["status.round.outcome"]["description"]


def test_the_schema_has_every_field_that_the_operator_writes_and_no_other() -> None:
    """A field that is missing here would be dropped on its way to the API server, without a word."""
    time = datetime(2026, 11, 21, tzinfo=timezone.utc)
    written = JobStatus(
        observed_generation=1,
        conditions=(Condition("Training", "True", "Training", "message", time, 1),),
        start=time,
        completion=time,
        replicas=1,
        selector="selector",
        min_replicas=1,
        restarts=1,
        attempts=(0,),
        round=RoundStatus(
            number=1,
            phase="Active",
            nonce="nonce",
            leader="leader",
            leader_endpoint="host:1",
            members=1,
            processes=1,
            start=time,
            established=time,
            broken=time,
            cause="cause",
            account="account",
            message="message",
            outcome="Complete",
            refused=("id",),
            establish_failures=1,
            missing=("pod",),
            not_leading=("pod",),
            named=(Named("pod", time),),
        ),
        participants=(
            ParticipantStatus("id", "pod", "uid", "Member", 0, 0, "host:1", "node", "auto", "message"),
        ),
        rounds=(RoundHistory(1, "cause", "account", 1, time, time, 1, "message"),),
        accounts=(Account("scaling", 1, 1, (Charge(time, 1, "pod"),)),),
        last_failure=Failure("pod", time, "message", 0, 1, 1),
    ).dump()
    expected = {path for path in FIELDS if path.startswith("status.")}
    assert set(paths(written, "status")) == expected


def paths(value: object, path: str) -> Iterator[str]:
    """The paths of all fields in a piece of JSON, written like those of the schema."""
    if isinstance(value, dict):
        for name, field in value.items():
            yield f"{path}.{name}"
            yield from paths(field, f"{path}.{name}")
    if isinstance(value, list):
        for item in value:
            yield from paths(item, f"{path}[]")


def test_the_status_refuses_nothing_but_wrong_types_and_unknown_states() -> None:
    for path, field in fields(STATUS, "status"):
        allowed = {"type", "format", "description", "properties", "items", "enum", "required"}
        assert set(field) <= allowed | {"x-kubernetes-list-type", "x-kubernetes-list-map-keys"}, path
    restricted = {path for path, field in fields(STATUS, "status") if "enum" in field}
    assert restricted == {
        "status.conditions[].status",
        "status.round.phase",
        "status.participants[].state",
        "status.accounts[].name",
    }


def test_every_list_says_how_it_is_merged() -> None:
    lists = {path: field for path, field in FIELDS.items() if field.get("type") == "array"}
    assert len(lists) == 10
    for path, field in lists.items():
        assert field["x-kubernetes-list-type"] in ("atomic", "map"), path


def test_the_generator_refuses_what_it_does_not_know() -> None:
    def openapi(container: dict[str, Any]) -> dict[str, Any]:
        template = {"type": "object", "properties": {"spec": container}}
        return {"components": {"schemas": {"io.k8s.api.core.v1.PodTemplateSpec": template}}}

    with pytest.raises(ValueError, match="without type"):
        generate.template_properties(openapi({"anyOf": [{"type": "string"}]}))
    with pytest.raises(ValueError, match="contains itself"):
        generate.template_properties(
            openapi({"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"}]})
        )


def test_the_generator_needs_its_markers() -> None:
    with pytest.raises(ValueError, match="does not have the lines"):
        generate.splice("text without markers", {})


def test_generating_changes_only_what_is_between_the_markers() -> None:
    text = generate.CRD_FILE.read_text()
    changed = generate.splice(text, {"metadata": {"type": "object"}})
    before, _, rest = text.partition(generate.BEGIN)
    assert changed.startswith(before)
    assert changed.endswith(rest.partition(generate.END)[2])
    template = yaml.safe_load(changed)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
        "spec"
    ]["properties"]["template"]
    assert template["properties"] == {"metadata": {"type": "object"}}
    assert template["required"] == ["spec"]
