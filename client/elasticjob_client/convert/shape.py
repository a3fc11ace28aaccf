"""Whether a manifest has the shape that the conversion reads: what has not is named by its field. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANY = "*"
"""Stands in a shape for each field that has no shape of its own."""
_WORDS: dict[Any, str] = {str: "text", int: "a whole number", bool: "true or false"}

_NAMED = {"name": str}
_METADATA = {**_NAMED, "namespace": str, "labels": {ANY: str}, "annotations": {ANY: str}}
_VARIABLES = [{"name": str, "!": ("name",)}]
_CONTAINER = {
    **_NAMED,
    "image": str,
    "command": [str],
    "args": [str],
    "env": _VARIABLES,
    "ports": [_NAMED],
    "resources": {},
}
_TEMPLATE = {"metadata": _METADATA, "spec": {"containers": [_CONTAINER], "restartPolicy": str}}
_PROCESSES = (int, str)
_PYTORCHJOB = {
    "metadata": _METADATA,
    "spec": {
        "nprocPerNode": _PROCESSES,
        "pytorchReplicaSpecs": {ANY: {"replicas": int, "restartPolicy": str, "template": _TEMPLATE}},
        "elasticPolicy": {
            "minReplicas": int,
            "maxReplicas": int,
            "maxRestarts": int,
            "nProcPerNode": int,
            "metrics": [{}],
        },
        "runPolicy": {
            "backoffLimit": int,
            "suspend": bool,
            "activeDeadlineSeconds": int,
            "ttlSecondsAfterFinished": int,
            "cleanPodPolicy": str,
            "managedBy": str,
            "schedulingPolicy": {"priorityClass": str},
        },
    },
}
_TRAINJOB = {
    "metadata": _METADATA,
    "spec": {
        "runtimeRef": {**_NAMED, "kind": str},
        "suspend": bool,
        "activeDeadlineSeconds": int,
        "trainer": {
            "image": str,
            "command": [str],
            "args": [str],
            "env": _VARIABLES,
            "numNodes": int,
            "numProcPerNode": _PROCESSES,
            "resourcesPerNode": {},
        },
    },
}
_JOB = {
    **_NAMED,
    "template": {"metadata": _METADATA, "spec": {"template": _TEMPLATE}},
    "!": ("template",),
}
_RUNTIME = {
    "metadata": _METADATA,
    "spec": {
        "mlPolicy": {
            "numNodes": int,
            "torch": {
                "numProcPerNode": _PROCESSES,
                "elasticPolicy": {"minNodes": int, "maxNodes": int, "maxRestarts": int, "metrics": [{}]},
            },
        },
        "template": {"spec": {"replicatedJobs": [_JOB]}},
    },
}
SHAPES: dict[str, Any] = {
    "PyTorchJob": _PYTORCHJOB,
    "TrainJob": _TRAINJOB,
    "ClusterTrainingRuntime": _RUNTIME,
    "TrainingRuntime": _RUNTIME,
}
"""The shapes by kind. Braces are objects, brackets lists; "!" lists the fields that must be there."""


def check(found: Any, shape: Any, path: str = "") -> None:
    """Raises ValueError with the field, what it is, and what was expected. What is null is not there."""
    if isinstance(shape, Mapping):
        if not isinstance(found, Mapping):
            raise _wrong(found, "an object", path)
        for field in shape.get("!", ()):
            if found.get(field) is None:
                raise ValueError(f"{path} has no {field}: expected one")
        for field, value in found.items():
            inner = shape.get(field, shape.get(ANY)) if field != "!" else None
            if inner is not None and value is not None:
                check(value, inner, f"{path}.{field}".lstrip("."))
    elif isinstance(shape, list):
        if not isinstance(found, list):
            raise _wrong(found, "a list", path)
        for number, one in enumerate(found):
            check(one, shape[0], f"{path}[{number}]")
    else:
        kinds = shape if isinstance(shape, tuple) else (shape,)
        if not any(isinstance(found, kind) and isinstance(found, bool) == (kind is bool) for kind in kinds):
            raise _wrong(found, " or ".join(_WORDS[kind] for kind in kinds), path)


def _wrong(found: Any, expected: str, path: str) -> ValueError:
    shown = repr(found)
    return ValueError(f"{path} is {shown if len(shown) <= 40 else f'{shown[:37]}...'}: expected {expected}")
