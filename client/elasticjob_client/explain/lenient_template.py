"""Makes a template of any shape fit for conclusions: the resource takes any.

Pure. A part of the wrong type counts as absent, and a text that is too long is cut.
"""

from __future__ import annotations

from typing import Any

LONGEST_WORD, MOST = 4_000, 200
"""Letters of a word, and entries of a list or mapping."""


def template(found: Any) -> dict[str, Any]:
    """A pod template with at least one container, from what is usable of this one."""
    whole = _mapping(found)
    spec, metadata = _mapping(whole.get("spec")), _mapping(whole.get("metadata"))
    containers = [_container(one) for one in _mappings(spec.get("containers"))] or [{}]
    volumes = [_volume(one) for one in _mappings(spec.get("volumes"))]
    labels, annotations = (_words_of(metadata.get(part)) for part in ("labels", "annotations"))
    gates = _mappings(spec.get("readinessGates"))
    return {
        **whole,
        "metadata": {**metadata, "labels": labels, "annotations": annotations},
        "spec": {**spec, "containers": containers, "volumes": volumes, "readinessGates": gates},
    }


def _container(found: dict[str, Any]) -> dict[str, Any]:
    asked = _mapping(found.get("resources"))
    return {
        **found,
        "name": word(found.get("name")),
        "image": word(found.get("image")),
        "command": words(found.get("command")),
        "args": words(found.get("args")),
        "env": _mappings(found.get("env")),
        "envFrom": _mappings(found.get("envFrom")),
        "resources": {
            **asked, "limits": _words_of(asked.get("limits")), "requests": _words_of(asked.get("requests"))
        },
    }  # fmt: skip


def _volume(found: dict[str, Any]) -> dict[str, Any]:
    if "persistentVolumeClaim" not in found:
        return found
    claim = _mapping(found["persistentVolumeClaim"])
    return {**found, "persistentVolumeClaim": {**claim, "claimName": word(claim.get("claimName"))}}


def word(found: Any) -> str:
    """A scalar as text; "" for anything else."""
    return str(found)[:LONGEST_WORD] if isinstance(found, (str, int, float)) else ""


def words(found: Any) -> list[str]:
    """Those of a command."""
    return [word(one) for one in found[:MOST]] if isinstance(found, list) else []


def _words_of(found: Any) -> dict[str, str]:
    return {str(key)[:LONGEST_WORD]: word(value) for key, value in [*_mapping(found).items()][:MOST]}


def _mapping(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _mappings(found: Any) -> list[dict[str, Any]]:
    return [one for one in found[:MOST] if isinstance(one, dict)] if isinstance(found, list) else []
