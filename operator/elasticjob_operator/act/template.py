"""Makes the pod of one slot and attempt out of a job's pod template. Pure; the input is never changed.

Everything that the operator changes in a template is here (docs/operate/pods.md): labels, the owner, a name,
``restartPolicy: Never``, environment for the training container alone, an identity, a grace period that is
only ever raised, a preStop hook (``pre_stop``), the end of a failed container's log in the pod's status, a
folder for temporary files where there would be none, a wish for different nodes, the priority of pods
without which the job trains, the PodGroup, and the handler (``injection``). Everything else is the user's,
field by field.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from elasticjob.contract.devices import Claims
from elasticjob.contract.names import (
    API_VERSION,
    ATTEMPT_LABEL,
    AVOID_NODES_ANNOTATION,
    COPIES_ENV,
    JOB_LABEL,
    JOB_UID_ENV,
    KIND,
    MEMORY_ENV,
    NODE_ENV,
    POD_NAME_ENV,
    POD_UID_ENV,
    SERVICE_ACCOUNT_DIR_ENV,
    SLOT_LABEL,
    WARM_ENV,
    WARM_IMPORTS_ENV,
    ZONE_ENV,
    pod_name,
)
from elasticjob_operator.act import injection, pre_stop
from elasticjob_operator.plan.state.model import CopySpread, Job
from elasticjob_operator.plan.template import accelerators, pod_group, torchrun_flags
from elasticjob_operator.plan.template.containers import (
    DEFAULT_CONTAINER_ANNOTATION,
    training_container,
)

TOKEN_DIR = "/var/run/secrets/elasticjob.dev/serviceaccount"
TOKEN_VOLUME = "elasticjob-token"
TEMPORARY_VOLUME = "elasticjob-tmp"
TEMPORARY_DIR = "/tmp"
SAFE_TO_EVICT_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Names the volumes on a node's disk that may be lost: others keep the autoscaler from removing the node."""
TOKEN_SECONDS = 3607
"""What Kubernetes itself asks for in its own token volumes."""

_NO_CLAIMS: Claims = {}


def job_identity(job: Job) -> str:
    """The name of the job's own ServiceAccount, Role and RoleBinding."""
    return f"{job.name}-elasticjob"


def owner_reference(job: Job, controller: bool = True) -> dict[str, Any]:
    """What makes an object go when the job goes."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    return {**reference, "controller": True, "blockOwnerDeletion": True} if controller else reference


def service_account(job: Job) -> str | None:
    """The ServiceAccount that the template names for itself, if any."""
    spec = _spec(job)
    return str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "") or None


def pod_of(
    job: Job,
    slot: int,
    attempt: int,
    handler_image: injection.HandlerImage,
    avoid: tuple[str, ...] = (),
    claims: Claims = _NO_CLAIMS,
    is_small: bool = True,
    group: str = "",
) -> dict[str, Any]:
    """The manifest of the pod, kept off the nodes to ``avoid``. The job must have a template. ``claims``: the
    ResourceClaimTemplates that it names; ``is_small``: of what is added (``injection``); ``group``: its
    PodGroup, if it has one."""
    template: dict[str, Any] = copy.deepcopy(dict(job.spec.template or {}))
    given = template.get("metadata") or {}
    spec: dict[str, Any] = template.get("spec") or {}
    meta: dict[str, Any] = {
        "name": pod_name(job.name, slot, attempt),
        "namespace": job.namespace,
        "labels": {
            **(given.get("labels") or {}),
            JOB_LABEL: job.name,
            SLOT_LABEL: str(slot),
            ATTEMPT_LABEL: str(attempt),
        },
        "ownerReferences": [owner_reference(job)],
    }
    annotations = {k: v for k, v in (given.get("annotations") or {}).items() if k != AVOID_NODES_ANNOTATION}
    if avoid:
        annotations[AVOID_NODES_ANNOTATION] = ",".join(avoid)
    if given.get("finalizers"):
        meta["finalizers"] = given["finalizers"]
    spec["restartPolicy"] = "Never"
    container = _training_container(given, spec)
    grace = spec.get("terminationGracePeriodSeconds")
    spec["terminationGracePeriodSeconds"] = pre_stop.add(
        container, annotations, job.spec.drain_seconds, grace
    )
    forced, offered = _environment(job, container, claims)
    if service_account(job) is None:
        spec["serviceAccountName"] = job_identity(job)
    if spec.get("automountServiceAccountToken") is False:
        _project_token(spec, container)
        forced.append({"name": SERVICE_ACCOUNT_DIR_ENV, "value": TOKEN_DIR})
    container["env"] = _merged(container.get("env") or [], forced, offered)
    _keep_last_words(spec, container)
    added = _add_temporary_folder(spec, container)
    if injection.wanted(job):
        injection.inject(spec, container, handler_image, is_small)
        added.append(injection.VOLUME)
    _let_evict(annotations, added)
    if annotations:
        meta["annotations"] = annotations
    _spread(spec, job)
    _keep_off(spec, avoid)
    _lower_priority(spec, job, slot)
    if group:
        pod_group.join(job, group, meta, spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _lower_priority(spec: dict[str, Any], job: Job, slot: int) -> None:
    """Of a pod without which the job trains. What the template says beside a class is that of its class."""
    if job.spec.extra_priority_class and slot >= job.spec.least:
        for field in ("priority", "preemptionPolicy"):
            spec.pop(field, None)
        spec["priorityClassName"] = job.spec.extra_priority_class


def warnings(job: Job) -> tuple[str, ...]:
    """What in the training container's command works against the environment that it is given."""
    if job.spec.template is None:
        return ()
    container = _container_of(job)
    return tuple(
        f"container {container.get('name')!r} {words}, which overrides the environment set by the operator; "
        "remove it, or the pod will not take part in the job's rounds"
        for words in torchrun_flags.overriding(job, container)
    )


def path_warnings(job: Job) -> tuple[str, ...]:
    """What of the training container's import path is lost to the handler's."""
    if not injection.wanted(job):
        return ()
    return injection.warnings(_container_of(job))


def misnamed_container(job: Job) -> tuple[str, ...]:
    """A sentence if the annotation that says which container trains names none that there is."""
    meta = (job.spec.template or {}).get("metadata") or {}
    wanted = (meta.get("annotations") or {}).get(DEFAULT_CONTAINER_ANNOTATION)
    chosen = str(_container_of(job).get("name", ""))
    if wanted is None or wanted == chosen:
        return ()
    return (
        f"the template's annotation {DEFAULT_CONTAINER_ANNOTATION} is {wanted!r}, but no container has that "
        f"name; using the first container, {chosen!r}; correct or remove the annotation",
    )


def _spec(job: Job) -> Mapping[str, Any]:
    return (job.spec.template or {}).get("spec") or {}


def _training_container(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    name = training_container(meta, spec)
    container: dict[str, Any]
    for container in spec.get("containers") or ():
        if container.get("name") == name:
            return container
    return {}


def _container_of(job: Job) -> dict[str, Any]:
    return _training_container((job.spec.template or {}).get("metadata") or {}, _spec(job))


def _environment(
    job: Job, container: Mapping[str, Any], claims: Claims
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The environment that is always set, and the one that is set unless the user sets it."""
    forced: list[dict[str, Any]] = [
        {"name": POD_NAME_ENV, "valueFrom": _field("metadata.name")},
        {"name": POD_UID_ENV, "valueFrom": _field("metadata.uid")},
        {"name": JOB_UID_ENV, "value": job.uid},
        *({"name": name, "value": value} for name, value in torchrun_flags.environment(job).items()),
    ]
    nproc = accelerators.nproc_per_node(job, container, claims)
    # A value of envFrom can't be seen here and would lose against env: leave torch's own default (1) to it.
    hidden = nproc == "1" and job.spec.nproc_per_node is None and container.get("envFrom")
    offered: list[dict[str, Any]] = [] if hidden else [{"name": "PET_NPROC_PER_NODE", "value": nproc}]
    warm = job.spec.warm_workers
    if warm is not None:
        offered.append({"name": WARM_ENV, "value": "on" if warm.enabled else "off"})
    if warm is not None and warm.enabled and warm.imports:
        offered.append({"name": WARM_IMPORTS_ENV, "value": ":".join(warm.imports)})
    return forced, [*offered, *_memory_environment(job)]


def _memory_environment(job: Job) -> list[dict[str, Any]]:
    """What switches the agent's memory tier on. Without a node's name, copies go to any pod. Kubernetes
    copies the node's zone to the pod from 1.35 on (the admission plugin PodTopologyLabels)."""
    memory = job.spec.memory_checkpoints
    if memory is None:
        return []
    found: list[dict[str, Any]] = [
        {"name": MEMORY_ENV, "value": str(memory.per_pod)},
        {"name": COPIES_ENV, "value": str(memory.copies)},
    ]
    if memory.copies and memory.spread == CopySpread.NODE:
        found.append({"name": NODE_ENV, "valueFrom": _field("spec.nodeName")})
        found.append(
            {"name": ZONE_ENV, "valueFrom": _field("metadata.labels['topology.kubernetes.io/zone']")}
        )
    return found


def _merged(
    users: list[dict[str, Any]], forced: list[dict[str, Any]], offered: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Ours first, so that the user's values may refer to them by ``$(NAME)``; the user's keep their order."""
    reserved = {entry["name"] for entry in forced}
    kept = [entry for entry in users if entry.get("name") not in reserved]
    named = {entry.get("name") for entry in kept}
    return forced + [entry for entry in offered if entry["name"] not in named] + kept


def _project_token(spec: dict[str, Any], container: dict[str, Any]) -> None:
    """A token for the training container alone; the rest of the pod stays without, as the user wants it."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": _field_ref("metadata.namespace")}]}},
    ]
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": TOKEN_VOLUME, "projected": {"sources": sources}},
    ]
    mount = {"name": TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]


def _keep_last_words(spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Let the kubelet put the end of a failed container's log into the pod's status: its log goes with the
    pod. Where the template says how, it says so."""
    ending = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") != "Always"]
    for one in (container, *ending):
        if one and not one.get("terminationMessagePolicy") and not one.get("terminationMessagePath"):
            one["terminationMessagePolicy"] = "FallbackToLogsOnError"


def _add_temporary_folder(spec: dict[str, Any], container: dict[str, Any]) -> list[str]:
    """torchrun needs a folder for temporary files, which a root that is read-only does not have. Returns the
    volumes that were added."""
    mounts = container.get("volumeMounts") or []
    named = any(entry.get("name") == "TMPDIR" for entry in container.get("env") or ())
    mounted = any(str(mount.get("mountPath", "")).rstrip("/") == TEMPORARY_DIR for mount in mounts)
    read_only = (container.get("securityContext") or {}).get("readOnlyRootFilesystem") is True
    if not read_only or named or mounted:
        return []
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": TEMPORARY_VOLUME, "emptyDir": {}}]
    container["volumeMounts"] = [*mounts, {"name": TEMPORARY_VOLUME, "mountPath": TEMPORARY_DIR}]
    return [TEMPORARY_VOLUME]


def _let_evict(annotations: dict[str, str], volumes: list[str]) -> None:
    """Let the cluster autoscaler know that nothing is lost with these volumes, beside those that the template
    names."""
    named = [name for name in annotations.get(SAFE_TO_EVICT_VOLUMES, "").split(",") if name]
    if volumes:
        annotations[SAFE_TO_EVICT_VOLUMES] = ",".join(dict.fromkeys([*named, *volumes]))


def _spread(spec: dict[str, Any], job: Job) -> None:
    """Prefer a node for each pod, where the template says nothing of where pods stand to each other: if a
    node is lost with all members, nothing shows that they have stopped. It is no condition; an empty list
    keeps it off."""
    affinity = spec.get("affinity") or {}
    if spec.get("topologySpreadConstraints") is not None or spec.get("nodeName"):
        return
    if affinity.get("podAffinity") or affinity.get("podAntiAffinity"):
        return
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {JOB_LABEL: job.name}},
        }
    ]


def _keep_off(spec: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Require other nodes than these, beside what the template requires: its terms are alternatives, so each
    gets the condition. A field requirement has exactly one value. An empty term of the template's matches no
    node, and goes on to do so."""
    if not nodes:
        return
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    node_affinity = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    given = (node_affinity.get(key) or {}).get("nodeSelectorTerms") or []
    terms = given or [{}]
    off = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    node_affinity[key] = {
        "nodeSelectorTerms": [
            {**term, "matchFields": [*(term.get("matchFields") or []), *off]} if term or not given else term
            for term in terms
        ]
    }


def _field(path: str) -> dict[str, Any]:
    return {"fieldRef": _field_ref(path)}


def _field_ref(path: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "fieldPath": path}
