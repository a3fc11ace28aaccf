"""A TrainJob (trainer.kubeflow.org/v1alpha1) with its runtime.

Their fields: https://github.com/kubeflow/trainer/tree/master/pkg/apis/trainer/v1alpha1
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from elasticjob_client.convert import result
from elasticjob_client.convert.result import Converted

RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE = "node"
"""The container that trains, in the runtimes that Kubeflow ships."""


def converted(body: Mapping[str, Any], runtime: Mapping[str, Any] | None) -> Converted:
    """``runtime``: what ``spec.runtimeRef`` names, if it is there. Raises ValueError with what is missing."""
    notes: list[str] = []
    spec = dict(body.get("spec") or {})
    meta = result.metadata(body.get("metadata") or {})
    trainer = dict(spec.get("trainer") or {})
    policy: dict[str, Any] = {}
    template: dict[str, Any] = {"spec": {"containers": [{"name": _NODE}]}}
    if runtime is not None:
        wanted = dict(runtime.get("spec") or {})
        policy = dict(wanted.get("mlPolicy") or {})
        template = _trainer(wanted, notes)
        if wanted.get("podGroupPolicy"):
            notes.append(f"podGroupPolicy: {result.NO_GANG}")
    else:
        name = (spec.get("runtimeRef") or {}).get("name", "")
        notes.append(
            f"the runtime {name!r} is not among the files: its template is missing; add it with "
            f"`kubectl get clustertrainingruntime {name} -o yaml`"
        )
    for other in ("mpi", "flux"):
        if other in policy:
            raise ValueError(f"the runtime is for {other}: expected one with mlPolicy.torch")
    torch = dict(policy.get("torch") or {})
    elastic = dict(torch.get("elasticPolicy") or {})
    _apply(trainer, template)
    pod, command = result.pod(template, _NODE, notes)
    if not pod["spec"]["containers"][0].get("image"):
        raise ValueError("neither the TrainJob nor its runtime names an image")
    minimum, maximum = elastic.get("minNodes"), elastic.get("maxNodes")
    nodes = trainer.get("numNodes") or policy.get("numNodes") or minimum or 1
    restarts = elastic.get("maxRestarts", command.max_restarts)
    for what, found in (("initializer", spec.get("initializer")), *_patches(spec)):
        if found:
            notes.append(f"{what}: not converted; do the same by an init container, or change the template")
    job = result.job(
        meta,
        {
            "replicas": nodes,
            "minReplicas": minimum or command.minimum,
            "maxReplicas": maximum or command.maximum,
            "nprocPerNode": trainer.get("numProcPerNode")
            or torch.get("numProcPerNode")
            or command.nproc_per_node,
            "suspend": spec.get("suspend"),
            "activeDeadlineSeconds": spec.get("activeDeadlineSeconds"),
            "failurePolicy": result.limit(restarts),
            "template": pod,
        },
    )
    if metrics := elastic.get("metrics"):
        return Converted(bodies=[job, result.autoscaler(meta, minimum, maximum, metrics)], notes=notes)
    return Converted(bodies=[job], notes=notes)


def _trainer(runtime: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The pods that train. Raises ValueError if the runtime has none."""
    jobs = ((runtime.get("template") or {}).get("spec") or {}).get("replicatedJobs") or []
    found = None
    for one in jobs:
        labels = ((one.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if labels.get(_STEP) == "trainer" or (found is None and one.get("name") in (_NODE, "trainer")):
            found = one
        else:
            notes.append(f"the runtime's job {one.get('name')}: not converted; its work must be done before")
    if found is None:
        raise ValueError(f"the runtime has no job with the label {_STEP}: trainer")
    return copy.deepcopy(dict(found["template"]["spec"]["template"]))


def _apply(trainer: Mapping[str, Any], template: dict[str, Any]) -> None:
    """What the TrainJob says of the container that trains wins over its runtime."""
    container = result.training_first(template["spec"], _NODE)
    for key in ("image", "command", "args"):
        if trainer.get(key):
            container[key] = trainer[key]
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    own = {one["name"]: one for one in trainer.get("env") or []}
    container["env"] = [*(e for e in container.get("env") or [] if e["name"] not in own), *own.values()]
    template["spec"]["containers"][0] = container


def _patches(spec: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, spec.get(key)) for key in ("runtimePatches", "podTemplateOverrides", "podSpecOverrides")]
