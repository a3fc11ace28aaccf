"""Environment and command line of a container, as kubelet makes them."""

from __future__ import annotations

from typing import Any

import pytest

from devcluster.nodeagent.env import (
    ConfigError,
    PodFacts,
    Sources,
    command_line,
    container_env,
    expand,
    field_value,
    referenced,
)

POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"a/b": "1"},
        "annotations": {"note": "n"},
    },
    "spec": {"nodeName": "node", "serviceAccountName": "sa"},
}
FACTS = PodFacts(POD, "10.0.0.1", "10.0.0.2")


def _env(container: dict[str, Any], **sources: Any) -> dict[str, str]:
    return container_env(container, FACTS, Sources(**sources), {"SERVICE": "s"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$(A)$", "1$"),
        ("a$$b", "a$b"),
    ],
)
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_later_variables_see_and_override_earlier_ones() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "cm"}, "prefix": "P_"}, {"secretRef": {"name": "s"}}],
        "env": [
            {"name": "B", "value": "$(P_A)-$(SERVICE)-$(LATER)"},
            {"name": "LATER", "value": "z"},
            {"name": "P_A", "value": "own"},
        ],
    }
    env = _env(container, config_maps={"cm": {"A": "1"}}, secrets={"s": {"K": "v"}})
    assert env == {"SERVICE": "s", "P_A": "own", "K": "v", "B": "1-s-$(LATER)", "LATER": "z"}


def test_keys_of_config_maps_and_secrets() -> None:
    container = {
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": True}}},
        ]
    }
    assert _env(container, config_maps={"cm": {"k": "1"}}) == {"SERVICE": "s", "A": "1"}
    assert referenced([container]) == ({"cm"}, {"none"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "cm", "key": "other"}}, "no key 'other' in 'cm'"),
        ({"secretKeyRef": {"name": "none", "key": "k"}}, "'none' not found"),
        ({"fieldRef": {"fieldPath": "status.phase"}}, r"'status\.phase' is not supported"),
    ],
)
def test_what_is_missing_is_named(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _env({"env": [{"name": "A", "valueFrom": source}]}, config_maps={"cm": {"k": "1"}})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['a/b']", "1"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['note']", "n"),
        ("spec.nodeName", "node"),
        ("status.podIPs", "10.0.0.1"),
        ("status.hostIP", "10.0.0.2"),
    ],
)
def test_downward_api(path: str, expected: str) -> None:
    assert field_value(path, FACTS) == expected


def test_command_line() -> None:
    assert command_line({"command": ["a", "$(X)"], "args": ["$$(X)"]}, {"X": "1"}) == ["a", "1", "$(X)"]
    assert command_line({}, {}) == []
