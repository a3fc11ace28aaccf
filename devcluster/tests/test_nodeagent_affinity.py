"""Which nodes a pod requires, as kubelet judges it."""

from __future__ import annotations

from typing import Any

import pytest

from devcluster.nodeagent.affinity import may_run, requires_nodes

LABELS = {"zone": "east", "disks": "4", "odd": "x"}


def requires(*terms: dict[str, Any], **spec: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}, **spec}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def field(operator: str, *names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "east"}}, True),
        ({"nodeSelector": {"zone": "west"}}, False),
        (requires(label("zone", "In", "east", "west")), True),
        (requires(label("zone", "In", "west")), False),
        (requires(label("zone", "NotIn", "east")), False),
        (requires(label("none", "NotIn", "east")), True),
        (requires(label("zone", "Exists")), True),
        (requires(label("zone", "DoesNotExist")), False),
        (requires(label("disks", "Gt", "3")), True),
        (requires(label("disks", "Lt", "4")), False),
        (requires(label("odd", "Gt", "3")), False),
        (requires(field("In", "a")), True),
        (requires(field("NotIn", "a")), False),
        (requires({**label("zone", "Exists"), **field("NotIn", "a")}), False),
        (requires(field("In", "b"), label("zone", "Exists")), True),
        (requires({}), False),
        (requires(label("zone", "Exists"), nodeSelector={"zone": "west"}), False),
    ],
)
def test_a_node_matches(spec: dict[str, Any], expected: bool) -> None:
    assert may_run(spec, "a", LABELS) == expected


def test_most_pods_require_none() -> None:
    preferred: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert not requires_nodes({"affinity": preferred, "nodeSelector": {}})
    assert requires_nodes(requires(field("In", "a")))
