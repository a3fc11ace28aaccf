"""What can be said of the chart without helm."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

import elasticjob
from charts import generate
from tests.docs_commands import documents

CHART = generate.CHART
METADATA: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
# Of an image, of the packed chart, of the chart in a registry.
NAMED_VERSION = r"(?:elasticjob-(?:operator|handler):|elasticjob-(?=[\d.]+\.tgz)|--version )(\d+\.\d+\.\d+)"
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def test_the_table_of_values_is_that_of_the_comments() -> None:
    text = generate.README.read_text()
    assert generate.readme(text) == text, "run python -m charts.generate"


def test_every_default_is_documented_under_its_name() -> None:
    documented = {value.name: json.loads(value.default) for value in generate.values(_values())}
    for name, default in documented.items():
        found: Any = DEFAULTS
        for part in name.split("."):
            found = found[part]
        assert found == default
    for parent in ("", *(name.rpartition(".")[0] for name in documented)):
        found = DEFAULTS
        for part in parent.split(".") if parent else ():
            found = found[part]
        inside = f"{parent}." if parent else ""
        assert {
            name.removeprefix(inside).split(".")[0] for name in documented if name.startswith(inside)
        } == set(found)


@pytest.mark.parametrize("text", ["replicaCount: 2\n", "image:\n  tag: x\n"])
def test_a_value_without_a_comment_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="has no comment"):
        generate.values(text)


def test_the_schema_knows_the_values_and_no_other() -> None:
    assert SCHEMA["additionalProperties"] is False
    renamed = {name for name, part in SCHEMA["properties"].items() if set(part) == {"$comment"}}
    assert renamed == {"replicas", "env", "topologySpreadKeys", "verbose"}, (
        "what the templates refuse in words"
    )
    assert set(SCHEMA["properties"]) == set(DEFAULTS) | renamed
    for name, part in SCHEMA["properties"].items():
        if part.get("additionalProperties") is False and name != "resources":
            assert set(part["properties"]) == set(DEFAULTS[name]), name


def test_the_definition_in_the_chart_is_the_one_in_crds() -> None:
    assert generate.COPY.read_text() == generate.DEFINITION.read_text(), "run python -m charts.generate"
    links = [file for file in CHART.rglob("*") if file.is_symlink()]
    assert not links, "helm warns of each"


def test_one_version_from_the_package_to_the_documents() -> None:
    """A release that has forgotten one of them would install what another has made."""
    assert METADATA["version"] == METADATA["appVersion"] == elasticjob.__version__
    dockerfiles = sorted((generate.ROOT / "docker").glob("*.Dockerfile"))
    assert len(dockerfiles) == 2
    for file in dockerfiles:
        assert f'image.version="{elasticjob.__version__}"' in file.read_text()
    named = [
        (str(file.relative_to(generate.ROOT)), version)
        for file in (*dockerfiles, *documents())
        for version in re.findall(NAMED_VERSION, file.read_text())
    ]
    assert len(named) >= 6
    assert [one for one in named if one[1] != elasticjob.__version__] == []


def test_artifact_hub_is_told_of_the_definition() -> None:
    (told,) = yaml.safe_load(METADATA["annotations"]["artifacthub.io/crds"])
    definition = yaml.safe_load(generate.DEFINITION.read_text())
    assert told["name"] == definition["metadata"]["name"]
    assert told["kind"] == definition["spec"]["names"]["kind"]
    assert [told["version"]] == [one["name"] for one in definition["spec"]["versions"] if one["storage"]]


def _values() -> str:
    return (CHART / "values.yaml").read_text()
