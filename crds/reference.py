"""Write docs/reference/resource.md, every field of the resource, from the CRD's own descriptions.

    python crds/reference.py

The text is what `kubectl explain` says; a field is documented there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CRD_FILE = Path(__file__).with_name("elasticjobs.elasticjob.dev.yaml")
PAGE = CRD_FILE.parent.parent / "docs" / "reference" / "resource.md"
TEMPLATE = "spec.template"

Schema = dict[str, Any]

_HEAD = """\
# Every field of an ElasticJob

<!-- Written by crds/reference.py from crds/elasticjobs.elasticjob.dev.yaml: change it there. -->

What `kubectl explain` says of each field. How they work together, with examples: [the job](../use/job.md).
The fields of `spec.template` are a pod's own.
"""


def page(crd: Schema) -> str:
    """The whole page, in Markdown, for the CRD's one version."""
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    sections = [
        "\n".join(_section(path, schema))
        for part in ("spec", "status")
        for path, schema in _objects(root[part], part)
    ]
    return "\n".join([_HEAD, *sections])


def _objects(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """The schema and all objects below it, lists' items under the list's name with ``[]``."""
    if path == TEMPLATE:
        return
    if schema["type"] == "array":
        yield from _objects(schema["items"], f"{path}[]")
    elif "properties" in schema:
        yield path, schema
        for name, field in schema["properties"].items():
            if "type" in field:
                yield from _objects(field, f"{path}.{name}")


def _named(rule: Schema) -> str:
    """A rule's message, after the field that the API server names with it."""
    field = rule.get("fieldPath", "").removeprefix(".")
    return f"`{field}`: {rule['message']}" if field else str(rule["message"])


def _section(path: str, schema: Schema) -> Iterator[str]:
    yield f"## {path}\n"
    if "description" in schema:
        yield f"{schema['description'].strip()}\n"
    if rules := schema.get("x-kubernetes-validations"):
        yield "The API server enforces:\n"
        yield from (f"- {_named(rule)}." for rule in rules)
        yield ""
    yield "| field | type | |"
    yield "|---|---|---|"
    for name, field in schema["properties"].items():
        required = " **Required.**" if name in schema.get("required", ()) else ""
        text = " ".join(field.get("description", "").split())
        yield f"| `{name}` | {_type(field)} | {_escaped(text + required + _bounds(field))} |"
    yield ""


def _type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    return str({"date-time": "time"}.get(field.get("format", ""), field["type"]))


def _bounds(field: Schema) -> str:
    """What the API server asks of a value, and what it fills in."""
    item = field.get("items", field)
    said = []
    if "enum" in item:
        said.append(f"One of {', '.join(f'`{value}`' for value in item['enum'])}.")
    for key, word in (("minimum", "At least"), ("maximum", "At most")):
        if key in item:
            said.append(f"{word} {item[key]}.")
    if "maxLength" in item:
        said.append(f"At most {item['maxLength']} characters.")
    if "maxItems" in field:
        said.append(f"At most {field['maxItems']} entries.")
    if "pattern" in item and not item.get("x-kubernetes-int-or-string"):
        said.append(f"Pattern `{item['pattern']}`.")
    if "default" in field:
        default = field["default"]
        value = str(default).lower() if isinstance(default, bool) else default
        said.append(f"Default: `{value}`.")
    return "".join(f" {sentence}" for sentence in said)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(yaml.safe_load(CRD_FILE.read_text())))
