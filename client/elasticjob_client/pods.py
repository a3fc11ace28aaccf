"""A job's pods, as far as its user asks about them: pure, from what the API server says of a pod."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from elasticjob.contract.names import COMPLETION_INDEX_LABEL, POD_INDEX_LABEL, SLOT_LABEL
from elasticjob_client.digits import whole
from elasticjob_client.resource import ElasticJob

if TYPE_CHECKING:
    from lightkube.models import core_v1

_INDEX_LABELS = (SLOT_LABEL, COMPLETION_INDEX_LABEL, POD_INDEX_LABEL)
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
NOT_A_SLOT = 1 << 30


class Pod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A pod of a job. ``container`` is the training container, and ``exit_code`` how it ended."""

    name: str
    uid: str = ""
    slot: int | None = None
    node: str = ""
    phase: str = ""
    container: str = ""
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None
    restarts: int = 0
    waiting: str = ""
    """Why a container does not run yet, in the words of kubelet or scheduler."""
    waiting_container: str = ""
    """Which one, in the kubelet's words; the scheduler speaks of the pod."""
    deleting: bool = False

    @property
    def state(self) -> str:
        """One word, as ``kubectl get pods`` has it, more or less."""
        if self.deleting:
            return "Terminating"
        if self.waiting and self.phase == "Pending":
            return self.waiting.partition(":")[0]
        return self.phase


def of(found: core_v1.Pod) -> Pod:
    """Read it from the API server's own form."""
    metadata, spec, status = found.metadata, found.spec, found.status
    assert metadata is not None
    assert metadata.name is not None
    labels = metadata.labels or {}
    slots = (whole(labels.get(one, "")) for one in _INDEX_LABELS)
    containers = [c.name for c in spec.containers] if spec else []
    training = (metadata.annotations or {}).get(_DEFAULT_CONTAINER, "")
    if training not in containers:
        training = containers[0] if containers else ""
    statuses = (status.containerStatuses or []) if status else []
    mine = next((s for s in statuses if s.name == training), None)
    state = mine.state if mine else None
    last = mine.lastState if mine else None
    ended = (state.terminated if state else None) or (last.terminated if last else None)
    running = state.running if state else None
    now = state.terminated if state else None
    waiting_container, waiting = _waiting(status) if status else ("", "")
    return Pod(
        name=metadata.name,
        uid=metadata.uid or "",
        slot=next((one for one in slots if one is not None), None),
        node=(spec.nodeName or "") if spec else "",
        phase=(status.phase or "") if status else "",
        container=training,
        created=metadata.creationTimestamp,
        started=running.startedAt if running else now.startedAt if now else None,
        ended=ended.finishedAt if ended else None,
        exit_code=ended.exitCode if ended else None,
        restarts=(mine.restartCount or 0) if mine else 0,
        waiting=waiting,
        waiting_container=waiting_container,
        deleting=metadata.deletionTimestamp is not None,
    )


def _waiting(status: core_v1.PodStatus) -> tuple[str, str]:
    """The container and why it waits; why the whole pod waits, without a container."""
    for container in [*(status.initContainerStatuses or []), *(status.containerStatuses or [])]:
        waiting = container.state.waiting if container.state else None
        if waiting and waiting.reason and waiting.reason not in ("PodInitializing", "ContainerCreating"):
            return container.name, ": ".join(filter(None, (waiting.reason, waiting.message)))
    for condition in status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return "", f"{condition.reason or 'Unschedulable'}: {condition.message or ''}".rstrip(": ")
    return "", ""


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """The pods by slot, the older attempt first."""
    return sorted(pods, key=lambda p: (NOT_A_SLOT if p.slot is None else p.slot, _age(p), p.name))


def _age(pod: Pod) -> float:
    return pod.created.timestamp() if pod.created else 0.0


def newest_of_slot(pods: Iterable[Pod], slot: int) -> Pod | None:
    """The newest pod of a slot."""
    mine = [p for p in in_order(pods) if p.slot == slot]
    return mine[-1] if mine else None


def of_rank(job: ElasticJob, pods: Iterable[Pod], rank: int) -> list[Pod]:
    """The pod with this group rank in the current or last round, and those that its slot had before.

    The status says only of the current round which pod has which rank; before the first round, ranks will
    be given by slot. Oldest first; empty if there is no such rank.
    """
    found = list(pods)
    member = next((p for p in job.members if p.group_rank == rank), None)
    if member is None and job.members:
        return []
    holder = next((p for p in found if member and p.name == member.pod_name), None)
    slot = member.slot if member else rank
    if holder is None and member and not any(p.slot == slot for p in found):
        return []
    if slot is None:
        return [holder] if holder else []
    before = [p for p in in_order(found) if p.slot == slot]
    if holder is None or holder not in before:
        return before
    return before[: before.index(holder) + 1]


def ranks(job: ElasticJob) -> dict[str, int]:
    """Group ranks of the current round's members, or of the last one's, by the names of their pods."""
    return {p.pod_name: p.group_rank for p in job.members if p.group_rank is not None}
