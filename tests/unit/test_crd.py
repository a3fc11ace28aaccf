"""The CRD file by itself: every field explained, small enough, and in the words of the contract."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

import pytest
import yaml

from crds import generate, reference
from elasticjob.contract import names
from elasticjob.contract.round_record import Outcome, Phase
from elasticjob.contract.state_source import Source
from elasticjob_operator.observe.spec import MANAGER
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.evidence import ACCOUNTS
from elasticjob_operator.plan.state.model import (
    CleanPodPolicy,
    CopySpread,
    GangScheduling,
    HandlerSource,
    JobSpec,
    MemoryCheckpoints,
    NetworkPolicy,
    RuleAction,
    WarmWorkers,
)
from elasticjob_operator.plan.state.status import JobStatus

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


def test_the_reference_is_what_the_descriptions_say() -> None:
    assert reference.PAGE.read_text() == reference.page(CRD), "run: python crds/reference.py"


def test_it_fits_into_the_annotation_of_a_client_side_apply() -> None:
    assert len(json.dumps(CRD)) < 200_000


def test_names_are_those_of_the_contract() -> None:
    assert CRD["metadata"]["name"] == f"{names.PLURAL}.{names.GROUP}"
    assert CRD["spec"]["group"] == names.GROUP
    assert CRD["spec"]["names"]["kind"] == names.KIND
    assert VERSION["name"] == names.VERSION
    assert f"{names.MAX_JOB_NAME_LENGTH}" in ROOT["x-kubernetes-validations"][0]["rule"]


def test_phases_are_those_of_the_contract() -> None:
    description = FIELDS["status.currentRound.phase"]["description"]
    assert re.findall(r"(\w+): ", description) == [p.value for p in Phase]
    for outcome in Outcome:
        assert outcome.value in FIELDS["status.terminalState"]["description"]


def test_the_schema_has_every_field_that_the_operator_writes_and_no_other() -> None:
    """A field that is missing here would be dropped on its way to the API server, without a word."""
    written = status_json.dump(filled(JobStatus))
    expected = {path for path in FIELDS if path.startswith("status.")}
    public = {path for path in paths(written, "status") if not path.startswith("status.internal.")}
    assert public == expected


def test_what_is_internal_is_kept_by_every_version_of_the_definition() -> None:
    assert FIELDS["status.internal"]["x-kubernetes-preserve-unknown-fields"]
    assert "properties" not in FIELDS["status.internal"]


def filled(kind: Any) -> Any:
    """A value of this type in which nothing is absent."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        values = {field.name: filled(hints[field.name]) for field in dataclasses.fields(kind)}
        return cast(Any, kind)(**values)
    if get_origin(kind) is tuple:
        return (filled(get_args(kind)[0]),)
    if isinstance(kind, UnionType):
        return filled(next(option for option in get_args(kind) if option is not NoneType))
    return {int: 1, bool: True, str: "text", datetime: datetime(2026, 11, 21, tzinfo=timezone.utc)}[kind]


def paths(value: object, path: str) -> Iterator[str]:
    """The paths of all fields in a piece of JSON, written like those of the schema."""
    if isinstance(value, dict):
        for name, field in value.items():
            yield f"{path}.{name}"
            yield from paths(field, f"{path}.{name}")
    if isinstance(value, list):
        for item in value:
            yield from paths(item, f"{path}[]")


def documented(page: str) -> Any:
    """The first piece of YAML in a document."""
    text = (generate.CRD_FILE.parents[1] / page).read_text()
    return yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])


def test_the_documentation_shows_every_field_of_the_spec() -> None:
    spec = documented("docs/use/job.md")["spec"]
    shown = {path for path in paths(spec, "spec") if not path.startswith("spec.template.")}
    expected = {path for path in FIELDS if path.startswith("spec.")}
    limits = ("spec.failurePolicy.preemption.windowSeconds", "spec.failurePolicy.rules[].onPodReasons")
    others = {*limits, "spec.scaling.multipleOf"}
    assert shown == expected - others, "those that are left out are shown elsewhere"


def test_the_documentation_shows_no_field_of_the_status_that_is_not_there() -> None:
    shown = set(paths(documented("docs/reference/status.md")["status"], "status"))
    assert shown <= set(FIELDS)
    top = {path for path in FIELDS if path.startswith("status.") and path.count(".") == 1}
    assert {path for path in shown if path.count(".") == 1} == top


def test_the_status_refuses_nothing_but_wrong_types() -> None:
    for path, field in fields(STATUS, "status"):
        allowed = {"type", "format", "description", "properties", "items", "enum", "required"}
        if path.startswith("status.conditions[]."):  # metav1's
            allowed |= {"minLength", "maxLength", "pattern", "minimum"}
        merging = {"x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"}
        assert set(field) <= allowed | merging | {"x-kubernetes-preserve-unknown-fields"}, path
    restricted = {path for path, field in fields(STATUS, "status") if "enum" in field}
    assert restricted == {"status.conditions[].status"}, (
        "a newer operator writes what this definition does not know"
    )


def test_every_list_says_how_it_is_merged() -> None:
    lists = {path: field for path, field in FIELDS.items() if field.get("type") == "array"}
    assert len(lists) == 14
    for path, field in lists.items():
        assert field["x-kubernetes-list-type"] in ("atomic", "map", "set"), path


def test_no_list_of_the_status_that_grows_is_merged_by_its_keys() -> None:
    """managedFields names each entry of such a list, with all its fields, and counts in etcd. Several writers
    could then write entries of it, but the operator alone writes the status."""
    maps = {path for path, field in FIELDS.items() if field.get("x-kubernetes-list-type") == "map"}
    assert maps == {"status.conditions", "status.accounts"}, "six entries, and four"


def test_every_list_and_string_that_a_rule_may_walk_has_an_end() -> None:
    """In the spec; the status has no rules. The template's own lists are Kubernetes' business."""
    for path, field in FIELDS.items():
        if path.startswith("spec."):
            assert field.get("type") != "array" or "maxItems" in field, path
            assert field.get("type") != "string" or "maxLength" in field or "enum" in field, path


def test_every_number_of_the_spec_has_bounds() -> None:
    for path, field in FIELDS.items():
        if path.startswith("spec.") and field.get("type") == "integer":
            assert field["format"] == "int32", path
            assert field["minimum"] < field["maximum"], path


def test_conditions_are_those_of_every_kubernetes_object() -> None:
    """metav1.Condition, as controller-gen writes it."""
    condition = STATUS["properties"]["conditions"]["items"]
    assert condition["required"] == ["lastTransitionTime", "message", "reason", "status", "type"]
    assert {
        name: {key: value for key, value in field.items() if key != "description"}
        for name, field in condition["properties"].items()
    } == {
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "message": {"type": "string", "maxLength": 32_768},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "reason": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1_024,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "type": {
            "type": "string",
            "maxLength": 316,
            "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        },
    }


def test_words_are_those_of_the_planner() -> None:
    assert FIELDS["spec.failurePolicy.rules[].action"]["enum"] == [action.value for action in RuleAction]
    assert FIELDS["spec.handlerSource"]["enum"] == [where.value for where in HandlerSource]
    assert FIELDS["spec.cleanPodPolicy"]["enum"] == [policy.value for policy in CleanPodPolicy]
    assert FIELDS["spec.networkPolicy"]["enum"] == [policy.value for policy in NetworkPolicy]
    assert FIELDS["spec.gangScheduling"]["enum"] == [gang.value for gang in GangScheduling]
    assert FIELDS["spec.memoryCheckpoints.spread"]["enum"] == [spread.value for spread in CopySpread]
    sources = re.findall(r"(\w+): ", FIELDS["status.roundHistory[].resumed.from"]["description"])
    assert sources == [source.value for source in Source]
    assert re.findall(r"(\w+): ", FIELDS["status.accounts[].name"]["description"]) == list(ACCOUNTS)
    assert MANAGER in FIELDS["spec.managedBy"]["description"]


def test_defaults_are_those_of_the_planner() -> None:
    defaults = {path: field["default"] for path, field in FIELDS.items() if "default" in field}
    spec = JobSpec()
    assert defaults == {
        "spec.replicas": spec.replicas,
        "spec.spares": spec.spares,
        "spec.warmWorkers.enabled": WarmWorkers().enabled,
        "spec.memoryCheckpoints.copies": MemoryCheckpoints(1).copies,
        "spec.memoryCheckpoints.spread": MemoryCheckpoints(1).spread,
        "spec.rendezvous": {},
        "spec.rendezvous.initialLastCallTimeoutSeconds": spec.limits.initial_last_call_timeout,
        "spec.rendezvous.lastCallTimeoutSeconds": spec.limits.last_call_timeout,
        "spec.rendezvous.rejoinTimeoutSeconds": spec.limits.rejoin_timeout,
        "spec.rendezvous.establishTimeoutSeconds": spec.limits.establish_timeout,
        "spec.rendezvous.heartbeatPeriodSeconds": spec.limits.heartbeat_period,
        "spec.rendezvous.heartbeatTimeoutSeconds": spec.limits.heartbeat_timeout,
        "spec.rendezvous.stallTimeoutSeconds": spec.limits.stall_timeout,
        "spec.scaling": {},
        "spec.scaling.scaleUpDelaySeconds": spec.scale_up_delay,
        "spec.suspend": spec.suspend,
        "spec.drainSeconds": spec.drain_seconds,
        "spec.cleanPodPolicy": spec.clean_pod_policy,
        "spec.handlerSource": spec.handler_source,
        "spec.networkPolicy": spec.network_policy,
        "spec.gangScheduling": spec.gang_scheduling,
    }


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


def test_of_a_pod_only_its_placement_may_change() -> None:
    pod = ROOT["properties"]["spec"]["properties"]["template"]["properties"]["spec"]
    rules = {name: field.get("x-kubernetes-validations", []) for name, field in pod["properties"].items()}
    free = {name for name, found in rules.items() if "self == oldSelf" not in [r["rule"] for r in found]}
    assert free == set(generate.MAY_CHANGE)
    (together,) = pod["x-kubernetes-validations"]
    named = set(re.findall(r"has\(self\.(\w+)\)", together["rule"]))
    assert named == set(pod["properties"]) - free - {"containers"}


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
