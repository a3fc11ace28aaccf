"""Which container of a pod, or of a template, trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"


def training_container(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Its name: that of the annotated default container, else of the first; "" if there is none."""
    annotations, containers = meta.get("annotations"), spec.get("containers")
    found = containers if isinstance(containers, list) else []
    names = [str(c.get("name", "")) for c in found if isinstance(c, Mapping)]
    wanted = annotations.get(DEFAULT_CONTAINER_ANNOTATION) if isinstance(annotations, Mapping) else None
    return str(wanted) if wanted in names else (names[0] if names else "")
