"""What a conversion gives, and what both kinds of job have in common."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from elasticjob.contract.names import API_VERSION, KIND
from elasticjob_client.convert import limits
from elasticjob_client.convert.command import Command, rewritten
from elasticjob_client.digits import whole
from elasticjob_client.names import check_name

_SET_BY_OTHERS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK")
NO_GANG = "left out; for gang scheduling set gangScheduling to the PodGroups that the cluster has"
_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """``bodies``: what to apply, the ElasticJob first. ``notes``: what was left out or needs a look."""

    bodies: list[dict[str, Any]]
    notes: list[str]


def metadata(found: Mapping[str, Any]) -> dict[str, Any]:
    """Name, namespace, labels and annotations. Raises ValueError if a job cannot have the name."""
    name = str(found.get("name") or "")
    check_name("a new job", name)
    annotations = {k: v for k, v in (found.get("annotations") or {}).items() if k != _KUBECTL}
    parts = {"namespace": found.get("namespace"), "labels": found.get("labels"), "annotations": annotations}
    return {"name": name, **{key: value for key, value in parts.items() if value}}


def training_first(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """Move the training container to the front, where the operator looks for it. Raises ValueError without
    one."""
    containers = spec.get("containers") or []
    if not containers:
        raise ValueError("the template has no containers")
    mine = next((one for one in containers if one.get("name") == name), containers[0])
    spec["containers"] = [mine, *(one for one in containers if one is not mine)]
    return dict(mine)


def pod(template: Mapping[str, Any], container_name: str, notes: list[str]) -> tuple[dict[str, Any], Command]:
    """A template that the operator takes, and what its command said of torchrun."""
    found = copy.deepcopy(dict(template))
    spec = dict(found.get("spec") or {})
    container = training_first(spec, container_name)
    if (policy := spec.pop("restartPolicy", "Never")) != "Never":
        notes.append(f"restartPolicy {policy}: left out; a failed pod is replaced, under a new name")
    env = [one for one in container.get("env") or [] if one.get("name") not in _SET_BY_OTHERS]
    if gone := [one["name"] for one in container.get("env") or [] if one not in env]:
        notes.append(f"environment {', '.join(gone)}: left out; torchrun sets it in each round")
    container["env"] = env
    ports = [one for one in container.get("ports") or [] if one.get("name") != "pytorchjob-port"]
    container["ports"] = ports
    command = rewritten(container.get("command") or [], container.get("args") or [])
    notes += command.notes
    container["command"], container["args"] = command.command, command.arguments
    for key in ("env", "ports", "command", "args"):
        if not container[key]:
            del container[key]
    spec["containers"] = [container, *spec["containers"][1:]]
    body: dict[str, Any] = {"spec": spec}
    kept = {k: v for k, v in (found.get("metadata") or {}).items() if k in ("labels", "annotations") and v}
    return ({"metadata": kept, **body} if kept else body), command


def job(meta: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The ElasticJob, without what is not set. Raises ValueError for values that the API server refuses."""
    found = {key: value for key, value in spec.items() if value is not None}
    if (processes := whole(str(found.get("nprocPerNode")))) is not None:
        found["nprocPerNode"] = processes
    limits.check(found)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": found}


def limit(max_restarts: int | None) -> dict[str, Any] | None:
    """A limit for the script's failures over the job's whole life."""
    return None if max_restarts is None else {"application": {"maxRestarts": max_restarts}}


def autoscaler(
    meta: Mapping[str, Any], minimum: int | None, maximum: int | None, metrics: list[Any]
) -> dict[str, Any]:
    """What Kubeflow would have created for ``elasticPolicy.metrics``."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": meta["name"]}
    bounds = {"minReplicas": minimum, "maxReplicas": maximum or minimum or 1}
    spec = {"scaleTargetRef": reference, **{k: v for k, v in bounds.items() if v}, "metrics": metrics}
    place = {"namespace": meta["namespace"]} if "namespace" in meta else {}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": meta["name"], **place},
        "spec": spec,
    }
