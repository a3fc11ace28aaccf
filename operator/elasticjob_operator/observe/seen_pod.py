"""Pods as the operator keeps them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from elasticjob.contract.names import (
    ATTEMPT_LABEL,
    AVOID_NODES_ANNOTATION,
    COMPLETION_INDEX_LABEL,
    DRAIN_HOOK_ANNOTATION,
    JOB_LABEL,
    KEPT_LABELS,
    KIND,
    MEMBER_CONDITION,
    POD_INDEX_LABEL,
    REPLACE_SECONDS_ANNOTATION,
    SLOT_LABEL,
    slot_and_attempt,
)
from elasticjob.contract.text import is_token, last_words
from elasticjob_operator.observe.fields import (
    controller_of,
    mapping,
    mappings,
    text_of,
    time_of,
    version_of,
)
from elasticjob_operator.observe.objects import UNREACHABLE_TAINT, Seen, Taint
from elasticjob_operator.plan.state.model import OOM_KILLED, Exit, Participant, Pod
from elasticjob_operator.plan.template.containers import training_container
from elasticjob_operator.plan.template.pod_group import COSCHEDULING_LABEL, VOLCANO_ANNOTATION

SECONDS_TO_END = 10
"""The part of a pod's grace period after the end of a drain, in which its processes end."""
_TOLERATED_BY_ALL = ("node.kubernetes.io/not-ready", UNREACHABLE_TAINT)
"""Tolerations of these keys are added to every pod on its admission."""
_MAX_LAST_WORDS = 300
"""Characters kept of the end of a container's log."""
_MAX_INDEX = 1_000_000
_MAX_AVOIDS = 100
_MAX_TOLERATIONS = 100
_MAX_NAME = 253
_NOT_SCHEDULED = ("Unschedulable", "SchedulingGated", "Schedulable")
"""The last is Volcano's word for a pod that waits for others of its PodGroup."""
_STARTING = ("ContainerCreating", "PodInitializing", "")


@dataclass(frozen=True, slots=True)
class Toleration:
    """What a pod tolerates. An empty ``key`` or ``effect`` is any; ``value`` None: any."""

    key: str
    value: str | None
    effect: str

    def covers(self, taint: Taint) -> bool:
        """Whether the taint keeps no pod with it away."""
        return (
            self.key in ("", taint.key)
            and self.value in (None, taint.value)
            and self.effect in ("", taint.effect)
        )


@dataclass(frozen=True, slots=True)
class SeenPod(Seen):
    """A labelled pod. ``owner`` is the UID of its controller, ``made`` whether that is an ElasticJob and the
    name is one that the operator gives to its pods; ``pod`` leaves out what depends on others: whose it is,
    and its node's state."""

    owner: str
    made: bool
    service_account: str
    pod: Pod
    tolerations: tuple[Toleration, ...] = ()


def read_pod(raw: Mapping[str, Any], _old: SeenPod | None = None) -> SeenPod:
    """Slim a Pod."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    labels = mapping(meta, "labels")
    name, uid = str(meta.get("name", "")), str(meta.get("uid", ""))
    labelled = _first_index(labels, SLOT_LABEL, COMPLETION_INDEX_LABEL, POD_INDEX_LABEL)
    slot, attempt, mislabeled = labelled, _first_index(labels, ATTEMPT_LABEL) or 0, ""
    made = slot_and_attempt(_elasticjob_of(meta), name)
    if made is not None:
        slot, attempt = made  # labels can be changed, a name cannot
        mislabeled = ", ".join(
            f"{key}={text_of(labels.get(key)) or 'none'}"
            for key, value in ((SLOT_LABEL, slot), (ATTEMPT_LABEL, attempt))
            if labels.get(key) != str(value)
        )
    container = training_container(meta, spec)
    state = _state(status, container)
    phase = str(status.get("phase", ""))
    failed_init = _failed_init(status, state)
    conditions = {str(c.get("type")): c for c in mappings(status, "conditions")}
    disruption = conditions.get("DisruptionTarget", {})
    disrupted = disruption if disruption.get("status") == "True" else {}
    return SeenPod(
        namespace=str(meta.get("namespace", "")),
        name=name,
        uid=uid,
        job=str(labels.get(JOB_LABEL, "")),
        version=version_of(meta),
        owner=controller_of(meta),
        made=made is not None,
        service_account=str(spec.get("serviceAccountName") or "default"),
        tolerations=_tolerations(spec),
        pod=Pod(
            name=name,
            uid=uid,
            slot=slot,
            attempt=attempt,
            mislabeled=mislabeled,
            node=str(spec.get("nodeName") or ""),
            ip=_address(status),
            running=phase == "Running" and (state is None or "running" in state),
            ended=phase in ("Succeeded", "Failed"),
            sidecar_running=_sidecar_running(status, container),
            exit=_exit(state) or failed_init[1],
            failed_init=failed_init[0],
            last_exit=_exit(_state(status, container, "lastState")),
            restarts=_restarts(status, container),
            deleting=bool(meta.get("deletionTimestamp")),
            deletion_time=_deletion_time(meta),
            drain_seconds=_drain_seconds(meta, spec),
            replace_seconds=_replace_seconds(meta, spec),
            unschedulable=_unschedulable(conditions.get("PodScheduled", {})),
            waiting=_waiting(status, container),
            reason=text_of(status.get("reason") or disrupted.get("reason")),
            message=text_of(status.get("message") or disrupted.get("message")),
            disruption=text_of(disrupted.get("reason")),
            avoids=_avoids(mapping(meta, "annotations")),
            labels=tuple((key, text_of(labels[key])) for key in KEPT_LABELS if key in labels),
            member_gate=_member_gate(spec, conditions),
            created=time_of(meta.get("creationTimestamp")),
            group=_group(meta, spec),
        ),
    )


def _group(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """The PodGroup that it names, for whichever scheduler."""
    return text_of(
        mapping(spec, "schedulingGroup").get("podGroupName")
        or mapping(meta, "labels").get(COSCHEDULING_LABEL)
        or mapping(meta, "annotations").get(VOLCANO_ANNOTATION)
    )


def _member_gate(spec: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> bool | None:
    gates = (raw.get("conditionType") for raw in mappings(spec, "readinessGates"))
    if MEMBER_CONDITION not in gates:
        return None
    return conditions.get(MEMBER_CONDITION, {}).get("status") == "True"


def _tolerations(spec: Mapping[str, Any]) -> tuple[Toleration, ...]:
    """The tolerations of a pod without those that every pod has. One with ``tolerationSeconds`` counts, too:
    schedulers go by it. At most ``_MAX_TOLERATIONS`` are kept: a pod may have fifty thousand."""
    found = (raw for raw in mappings(spec, "tolerations") if raw.get("key") not in _TOLERATED_BY_ALL)
    return tuple(
        Toleration(
            text_of(raw.get("key")),
            None if raw.get("operator") == "Exists" else text_of(raw.get("value")),
            text_of(raw.get("effect")),
        )
        for raw in itertools.islice(found, _MAX_TOLERATIONS)
    )


def _drain_seconds(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    """How long the preStop hook may keep the workers alive: the grace period, which ``kubectl delete
    --grace-period`` may have made shorter, without what processes need to end."""
    if mapping(meta, "annotations").get(DRAIN_HOOK_ANNOTATION) != "true":
        return 0
    given = meta.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    return max(0, given - SECONDS_TO_END) if isinstance(given, int) else 0


def _replace_seconds(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    """How long the hook waits while the next pod starts, of the time that a shorter grace period has left."""
    said = str(mapping(meta, "annotations").get(REPLACE_SECONDS_ANNOTATION, ""))
    if not (said.isascii() and said.isdigit() and len(said) < 6):
        return 0
    whole, left = spec.get("terminationGracePeriodSeconds"), meta.get("deletionGracePeriodSeconds")
    shorter = whole - left if isinstance(whole, int) and isinstance(left, int) else 0
    return max(0, int(said) - max(0, shorter))


def _deletion_time(meta: Mapping[str, Any]) -> datetime | None:
    """When it was deleted: its deletionTimestamp is when its grace period ends."""
    until, grace = time_of(meta.get("deletionTimestamp")), meta.get("deletionGracePeriodSeconds")
    try:
        return until - timedelta(seconds=grace) if until is not None and isinstance(grace, int) else until
    except OverflowError:  # the API server takes any grace period
        return None


def _elasticjob_of(meta: Mapping[str, Any]) -> str:
    """The name of the ElasticJob that is the controlling owner, or empty."""
    owners = (o for o in mappings(meta, "ownerReferences") if o.get("controller") and o.get("kind") == KIND)
    return next((str(o.get("name", "")) for o in owners), "")


def _state(status: Mapping[str, Any], container: str, which: str = "state") -> Mapping[str, Any] | None:
    """The state of the container, None while no status of any container is there."""
    statuses = mappings(status, "containerStatuses")
    if not statuses:
        return None
    return next((mapping(s, which) for s in statuses if s.get("name") == container), {})


def _restarts(status: Mapping[str, Any], container: str) -> int:
    """How often the container was restarted in its pod."""
    counts = (
        s.get("restartCount") for s in mappings(status, "containerStatuses") if s.get("name") == container
    )
    return next((count for count in counts if isinstance(count, int)), 0)


def _sidecar_running(status: Mapping[str, Any], container: str) -> bool:
    """Whether another container has not ended. Init containers that run on (restartPolicy Always) are ended
    by the kubelet when the others have."""
    others = (s for s in mappings(status, "containerStatuses") if s.get("name") != container)
    return any("terminated" not in mapping(s, "state") for s in others)


def _exit(state: Mapping[str, Any] | None) -> Exit | None:
    if state is None or "terminated" not in state:
        return None
    end = mapping(state, "terminated")
    code, reason = end.get("exitCode"), text_of(end.get("reason"))
    if code == 0 and reason == OOM_KILLED:
        reason = "Completed"  # containerd's mark stays from a process that was killed while the container ran
    return Exit(
        code=code if isinstance(code, int) else -1,
        reason=reason,
        message=last_words(str(end.get("message") or ""), _MAX_LAST_WORDS),
        finished=time_of(end.get("finishedAt")),
    )


def _waiting(status: Mapping[str, Any], container: str) -> str:
    """Why a container can't start (the training container's reason first), empty while all is well."""
    statuses = mappings(status, "containerStatuses") + mappings(status, "initContainerStatuses")
    for found in sorted(statuses, key=lambda s: s.get("name") != container):
        waiting = mapping(mapping(found, "state"), "waiting")
        reason = text_of(waiting.get("reason"))
        if reason not in _STARTING:
            message = text_of(waiting.get("message"))
            return f"{reason}: {message}" if message else reason
    return ""


def _failed_init(status: Mapping[str, Any], training: Mapping[str, Any] | None) -> tuple[str, Exit | None]:
    """Which init container has ended a pod before its training container could start, and how."""
    if status.get("phase") != "Failed" or (training and "waiting" not in training):
        return "", None
    for found in mappings(status, "initContainerStatuses"):
        end = _exit(mapping(found, "state"))
        if end is not None and end.code != 0:
            return text_of(found.get("name")), end
    return "", None


def _unschedulable(condition: Mapping[str, Any]) -> str:
    if condition.get("status") != "False" or condition.get("reason") not in _NOT_SCHEDULED:
        return ""
    return text_of(condition.get("message") or condition.get("reason"))


def _avoids(annotations: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes that the operator keeps the pod off. Users who may change the pod may write here, too."""
    text = annotations.get(AVOID_NODES_ANNOTATION)
    names = text.split(",", _MAX_AVOIDS)[:_MAX_AVOIDS] if isinstance(text, str) else []
    return tuple(sorted(name for name in names if is_token(name, _MAX_NAME)))


def _address(status: Mapping[str, Any]) -> str:
    addresses = mappings(status, "podIPs")
    return str(addresses[0].get("ip", "")) if addresses else str(status.get("podIP") or "")


def _first_index(labels: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        text = str(labels.get(name, ""))
        if text.isascii() and text.isdigit() and int(text[:9]) < _MAX_INDEX:
            return int(text[:9])
    return None


def without_old_mark(pod: Pod, participant: Participant | None) -> Pod:
    """Ignore an old mark of an OOM kill: containerd keeps it for the life of a container of which any process
    was killed. If the agent of the container has outlived the kill, and says so, the mark is not why the
    container ended."""
    if pod.exit is None or pod.exit.reason != OOM_KILLED:
        return pod
    record = participant.record if participant is not None and participant.holder == pod.uid else None
    if record is None or not record.oom_kills:
        return pod
    return replace(pod, exit=replace(pod.exit, reason="Error"))
