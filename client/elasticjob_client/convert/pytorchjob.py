"""A PyTorchJob (kubeflow.org/v1).

Its fields: https://github.com/kubeflow/training-operator/blob/master/pkg/apis/kubeflow.org/v1/pytorch_types.go
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob_client.convert import result
from elasticjob_client.convert.result import Converted

_CONTAINER = "pytorch"
_PERMANENT = "exit codes 1 to 127 ended the job at once: add a failure rule for the codes that shall do so"


def converted(body: Mapping[str, Any]) -> Converted:
    """Raises ValueError with what is missing."""
    notes: list[str] = []
    spec = dict(body.get("spec") or {})
    meta = result.metadata(body.get("metadata") or {})
    replicas, template = _replicas(spec.get("pytorchReplicaSpecs") or {}, notes)
    pod, command = result.pod(template, _CONTAINER, notes)
    elastic, run = dict(spec.get("elasticPolicy") or {}), dict(spec.get("runPolicy") or {})
    minimum = elastic.get("minReplicas") or command.minimum
    maximum = elastic.get("maxReplicas") or command.maximum
    restarts = next(
        (n for n in (elastic.get("maxRestarts"), run.get("backoffLimit")) if n is not None),
        command.max_restarts,
    )
    policies = {one.get("restartPolicy") for one in (spec.get("pytorchReplicaSpecs") or {}).values()}
    if policies == {"Never"}:
        restarts = 0
    if "ExitCode" in policies:
        notes.append(f"restartPolicy ExitCode: {_PERMANENT}")
    nproc: Any = spec.get("nprocPerNode") or elastic.get("nProcPerNode") or command.nproc_per_node
    scheduling = dict(run.get("schedulingPolicy") or {})
    if priority := scheduling.pop("priorityClass", None):
        pod["spec"].setdefault("priorityClassName", priority)
    _left_out(elastic, run, scheduling, notes)
    job = result.job(
        meta,
        {
            "replicas": replicas,
            "minReplicas": minimum,
            "maxReplicas": maximum,
            "nprocPerNode": nproc,
            "suspend": run.get("suspend"),
            "activeDeadlineSeconds": run.get("activeDeadlineSeconds"),
            "ttlSecondsAfterFinished": run.get("ttlSecondsAfterFinished"),
            "cleanPodPolicy": run.get("cleanPodPolicy") or None,
            "failurePolicy": result.limit(restarts),
            "template": pod,
        },
    )
    if metrics := elastic.get("metrics"):
        return Converted(bodies=[job, result.autoscaler(meta, minimum, maximum, metrics)], notes=notes)
    return Converted(bodies=[job], notes=notes)


def _replicas(specs: Mapping[str, Any], notes: list[str]) -> tuple[int, Mapping[str, Any]]:
    """How many pods in all, and the template that all of them get."""
    master, worker = specs.get("Master"), specs.get("Worker")
    if not master and not worker:
        raise ValueError("spec.pytorchReplicaSpecs has neither Master nor Worker")
    count = sum(one.get("replicas", 1) for one in (master, worker) if one)
    template = (worker or master or {}).get("template") or {}
    if master and worker and (differing := _differences(master.get("template") or {}, template)):
        notes.append(
            f"Master and Worker differ in {', '.join(differing)}: an ElasticJob has one template, here the "
            "Worker's"
        )
    return count, template


def _differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Paths at which two templates differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [*one, *(key for key in other if key not in one)]
        inner = (_differences(one.get(key), other.get(key), f"{path}.{key}".lstrip(".")) for key in keys)
        return [found for paths in inner for found in paths]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        both = zip(one, other, strict=True)
        inner = (_differences(a, b, f"{path}[{number}]") for number, (a, b) in enumerate(both))
        return [found for paths in inner for found in paths]
    return [] if one == other else [path]


def _left_out(
    elastic: Mapping[str, Any], run: Mapping[str, Any], scheduling: Mapping[str, Any], notes: list[str]
) -> None:
    rendezvous = [key for key in elastic if key.startswith("rdzv") or key == "standalone"]
    if rendezvous:
        notes.append(f"elasticPolicy.{', '.join(rendezvous)}: left out; there is no rendezvous server")
    if scheduling:
        notes.append(f"schedulingPolicy.{', '.join(scheduling)}: {result.NO_GANG}")
    if run.get("managedBy"):
        notes.append(f"runPolicy.managedBy {run['managedBy']}: left out")
