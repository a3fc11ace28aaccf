"""What a queue says of the nodes of pods, and what it has to know of them.

A ResourceFlavor stands for a kind of node: pods that use its quota get its labels as nodeSelector, and its
tolerations. Admission checks may ask for more (``podSetUpdates``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob_operator.plan.queue.workloads import POD_SET, Workload

Flavor = Mapping[str, Any]
"""The spec of a ResourceFlavor."""

_OF_A_CONTAINER = ("name", "image", "resources", "restartPolicy")
_OF_A_POD = (
    *("nodeSelector", "affinity", "tolerations", "overhead", "runtimeClassName", "priorityClassName"),
    *("schedulerName", "resources", "resourceClaims"),
)
"""What decides on quota and flavors. The rest may be 100 KiB of scripts and secrets' names."""


def node_labels(flavors: Iterable[Flavor]) -> dict[str, str]:
    """The labels of nodes of all these flavors."""
    return {key: value for flavor in flavors for key, value in (flavor.get("nodeLabels") or {}).items()}


def pod_set(template: Mapping[str, Any], count: int, selector: Mapping[str, str]) -> dict[str, Any]:
    """The pod set of a Workload: ``count`` pods of the template, on nodes with the labels of ``selector``."""
    given = template.get("spec") or {}
    spec: dict[str, Any] = {key: given[key] for key in _OF_A_POD if given.get(key)}
    spec["restartPolicy"] = "Never"
    for kind in ("initContainers", "containers"):
        if given.get(kind):
            spec[kind] = [{key: one[key] for key in _OF_A_CONTAINER if one.get(key)} for one in given[kind]]
    if selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
    return {"name": POD_SET, "count": count, "template": {"metadata": {}, "spec": spec}}


def placed(template: Mapping[str, Any], base: Workload, flavors: Iterable[Flavor]) -> dict[str, Any]:
    """The template with what its queue says of its pods: flavors first, then admission checks."""
    kinds = tuple(flavors)
    updates: list[Mapping[str, Any]] = json.loads(base.updates or "[]")
    meta, spec = dict(template.get("metadata") or {}), dict(template.get("spec") or {})
    for field in ("labels", "annotations"):
        added = {key: value for update in updates for key, value in (update.get(field) or {}).items()}
        if added:
            meta[field] = {**(meta.get(field) or {}), **added}
    selector = node_labels(kinds)
    for update in updates:
        selector.update(update.get("nodeSelector") or {})
    if selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
    tolerations = [one for part in (*kinds, *updates) for one in part.get("tolerations") or ()]
    if tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or []), *tolerations]
    return {**template, "metadata": meta, "spec": spec}
