"""Which jobs an operator that begins to lead looks at first: where something has happened meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from elasticjob_operator.plan.state.model import Pod
from elasticjob_operator.plan.state.status import JobStatus, ParticipantStatus


class Urgency(IntEnum):
    """The lowest comes first."""

    LOSS = 0
    """A round runs, and a pod of it has ended, is about to, or is another than the one that joined."""
    WAITS = 1
    """No round runs."""
    TRAINS = 2
    ENDED = 3


def urgency(status: JobStatus, pods: Mapping[str, Pod]) -> Urgency:
    """How urgent a job is, by its status and its pods by name, as they were seen."""
    if status.finished:
        return Urgency.ENDED
    if status.current_round.phase != "Active":
        return Urgency.WAITS
    lost = any(_lost(member, pods.get(member.pod_name)) for member in status.members())
    return Urgency.LOSS if lost else Urgency.TRAINS


def _lost(member: ParticipantStatus, pod: Pod | None) -> bool:
    if member.succeeded:
        return False
    if pod is None or pod.uid != member.pod_uid:
        return True
    return pod.ended or pod.exit is not None or pod.deleting or pod.restarts != member.container_restarts
