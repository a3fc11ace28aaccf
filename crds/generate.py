"""Write the pod template's part of the CRD, from the API server's own description of a pod template.

    kubectl get --raw /openapi/v3/api/v1 | python crds/generate.py

`elasticjobs.elasticjob.dev.yaml` is written by hand but for the lines between the two markers, which this
script replaces in place. What it makes of the OpenAPI is a structural schema, and small: a CRD above 256 KiB
can't be applied client-side. So:

- No descriptions, no enums and no defaults. An enum of this version would refuse what the next one allows;
  a default would be written into the user's object; the API server adds both checks and defaults to the pod.
- A key of a map list must have a value: it gets its default if that is not empty (a port's protocol is TCP),
  else it is required (OpenAPI calls a pull secret's name optional "due to backwards compatibility").
- Quantities and ports are "int or string"; quantities have a pattern, so that `1GB` is refused at once.
- Embedded metadata is labels and annotations, all that a template may set. That of the pod template has what
  people bring from a Job's, too: finalizers, and names and a time that mean nothing there.
- `ephemeralContainers` are left out: no pod can be created with them.
- Of the pod, what a queue injects when it admits a suspended job may change (the rule at `spec` says when);
  every other field is immutable, each by a rule of its own, so that the message names it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

CRD_FILE = Path(__file__).with_name("elasticjobs.elasticjob.dev.yaml")
BEGIN = "# Begin of the part that crds/generate.py writes"
END = "# End of the part that crds/generate.py writes"

Schema = dict[str, Any]

_PREFIX = "#/components/schemas/"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"

_COPIED = (
    "type",
    "format",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)
_LEFT_OUT = {"ephemeralContainers"}
MAY_CHANGE = ("affinity", "nodeSelector", "schedulingGates", "tolerations")
"""Fields of the pod that may change while the job is suspended."""
_IMMUTABLE: Schema = {
    "rule": "self == oldSelf",
    "message": "may not be changed; delete the job and apply it again, it resumes from its checkpoint",
}

# As controller-gen has it.
_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_QUANTITY_PATTERN = rf"^(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?$"

_STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
# CEL rules walk the keys of both, so their number has a limit.
_METADATA: Schema = {
    "type": "object",
    "properties": {
        "annotations": {**_STRINGS, "maxProperties": 100},
        "labels": {**_STRINGS, "maxProperties": 100},
    },
}


_STRING: Schema = {"type": "string"}
_TEMPLATE_METADATA: Schema = {
    "type": "object",
    "properties": {
        **_METADATA["properties"],
        # `kubectl create --dry-run=client -o yaml` writes null.
        "creationTimestamp": {"type": "string", "format": "date-time", "nullable": True},
        "finalizers": {"type": "array", "items": _STRING, "x-kubernetes-list-type": "set"},
        "generateName": _STRING,
        "name": _STRING,
        "namespace": _STRING,
    },
}


def template_properties(openapi: Schema) -> Schema:
    """The structural schemas of a pod template's fields, from the document at /openapi/v3/api/v1.

    Raises ValueError at a construct that has no structural counterpart here: it must be thought about.
    """
    template = _Converter(openapi["components"]["schemas"]).convert({"$ref": _PREFIX + _POD_TEMPLATE})
    properties: Schema = template["properties"]
    properties["metadata"] = _TEMPLATE_METADATA
    # Kubernetes asks for this when the pod is made; here the message comes when the job is applied.
    containers = properties["spec"]["properties"]["containers"]
    containers["minItems"] = 1
    containers["items"]["properties"]["name"].update(minLength=1, maxLength=63)
    protect(properties["spec"])
    return properties


def protect(pod: Schema) -> None:
    """Add the rules by which fields of a pod's schema do not change. CEL compares lists of type map in any
    order, and the first container is the one that trains."""
    fixed = [name for name in pod["properties"] if name not in MAY_CHANGE]
    for name in fixed:
        pod["properties"][name]["x-kubernetes-validations"] = [dict(_IMMUTABLE)]
    pod["properties"]["containers"]["x-kubernetes-validations"].append(
        {"rule": "self[0].name == oldSelf[0].name", "message": "the first container may not be changed"}
    )
    optional = [name for name in fixed if name not in pod.get("required", [])]
    same = ", ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in optional)
    changing = f"{', '.join(sorted(MAY_CHANGE)[:-1])} and {sorted(MAY_CHANGE)[-1]}"
    pod["x-kubernetes-validations"] = [
        {
            "rule": f"[{same}].all(same, same)",
            "message": f"only {changing} of the pod may be added, changed or removed; delete the job and "
            "apply it again",
        }
    ]


class _Converter:
    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions
        self._open: list[str] = []

    def convert(self, source: Schema) -> Schema:
        """The structural form of ``source``, references replaced by what they refer to."""
        # A reference with a default of its own is wrapped in an allOf of one.
        reference = source.get("$ref") or source.get("allOf", [{}])[0].get("$ref")
        if reference:
            return self._refer(reference.removeprefix(_PREFIX))
        if "type" not in source:
            raise ValueError(f"{' > '.join(self._open)}: a schema without type: {json.dumps(source)[:200]}")
        target: Schema = {key: source[key] for key in _COPIED if key in source}
        if "properties" in source:
            fields = {name: field for name, field in source["properties"].items() if name not in _LEFT_OUT}
            target["properties"] = {name: self.convert(field) for name, field in sorted(fields.items())}
        if "additionalProperties" in source:
            target["additionalProperties"] = self.convert(source["additionalProperties"])
        if "items" in source:
            target["items"] = self.convert(source["items"])
            self._give_keys_values(source, target["items"], target.get("x-kubernetes-list-map-keys", []))
        return target

    def _refer(self, name: str) -> Schema:
        if name == _QUANTITY:
            return {"x-kubernetes-int-or-string": True, "pattern": _QUANTITY_PATTERN}
        if name == _INT_OR_STRING:
            return {"x-kubernetes-int-or-string": True}
        if name == _OBJECT_META:
            return _METADATA
        if name in self._open:
            raise ValueError(f"{' > '.join(self._open)}: {name} contains itself")
        self._open.append(name)
        converted = self.convert(self._definitions[name])
        self._open.pop()
        return converted

    def _give_keys_values(self, source: Schema, item: Schema, keys: list[str]) -> None:
        for key in keys:
            if key in item.get("required", []):
                continue
            default = self._default_of(source["items"], key)
            if default:
                item["properties"][key]["default"] = default
            else:
                item["required"] = [*item.get("required", []), key]

    def _default_of(self, item: Schema, field: str) -> object:
        reference = item["allOf"][0]["$ref"].removeprefix(_PREFIX)
        return self._definitions[reference]["properties"][field].get("default")


def splice(text: str, properties: Schema) -> str:
    """``text`` of the CRD file with ``properties`` between the markers, indented like them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{CRD_FILE.name} does not have the lines {BEGIN!r} and {END!r}")
    indent = before[before.rindex("\n") + 1 :]
    lines = _to_yaml(properties).splitlines()
    return "\n".join([before + begin, *(indent + line for line in lines), indent + end]) + after


class _Dumper(yaml.SafeDumper):
    """Writes no anchors: content that occurs twice is written twice."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _to_yaml(content: Schema) -> str:
    # default_flow_style=None: a mapping or list of scalars is one line.
    return str(yaml.dump(content, Dumper=_Dumper, default_flow_style=None, width=10_000))


def main() -> None:
    properties = template_properties(json.load(sys.stdin))
    CRD_FILE.write_text(splice(CRD_FILE.read_text(), properties))


if __name__ == "__main__":
    main()
