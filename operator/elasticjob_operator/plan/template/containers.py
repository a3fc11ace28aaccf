"""Which container of a pod, or of a template, trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob.contract.names import JOB_UID_ENV
from elasticjob.contract.text import one_line

HANDLER_CONTAINER = "elasticjob-handler"
"""The init container that the operator adds, and its volume."""
DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"


def training_container(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Its name; "" without one.

    Of a pod that the operator has made it is the one that was given the job's environment: others may have
    put containers before it (a service mesh does), renamed it or written the annotation, and environments
    can't be changed. Else it is the annotated default container, or the first.
    """
    annotations, containers = meta.get("annotations"), spec.get("containers")
    found = [c for c in containers if isinstance(c, Mapping)] if isinstance(containers, list) else []
    marked = [str(c.get("name", "")) for c in found if _is_marked(c)]
    if len(marked) == 1:
        return marked[0]
    names = [str(c.get("name", "")) for c in found]
    wanted = annotations.get(DEFAULT_CONTAINER_ANNOTATION) if isinstance(annotations, Mapping) else None
    return str(wanted) if wanted in names else (names[0] if names else "")


def container_of(template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The training container of a template; empty without one."""
    template = template or {}
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    name, containers = training_container(meta, spec), spec.get("containers")
    found = [c for c in containers if isinstance(c, Mapping)] if isinstance(containers, list) else []
    return next((c for c in found if c.get("name") == name), {})


def memory_limit(template: Mapping[str, Any] | None) -> str:
    """The template's limit of memory for the training container; "" if it has none."""
    resources = container_of(template).get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return one_line(str(limits.get("memory") or ""), 40) if isinstance(limits, Mapping) else ""


def _is_marked(container: Mapping[str, Any]) -> bool:
    env = container.get("env")
    entries = env if isinstance(env, list) else []
    return any(isinstance(entry, Mapping) and entry.get("name") == JOB_UID_ENV for entry in entries)
