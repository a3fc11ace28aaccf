"""Members whose pods are deleted, evicted or preempted while a preStop hook keeps their workers alive.

Such a round drains, if its workers take part, before it ends for the departure. A member counts as lost when
the drain is over, when its agent says that it ends, or when its container has ended: whichever comes first.
Its slot has its next pod from the deletion on. All train on until that has joined, where the grace period has
time for it; then the round drains. The record says so meanwhile (``replacing``): without it, the hook ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob.contract.round_record import Phase
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.changes import draining, scaling
from elasticjob_operator.plan.losses import pod_ends
from elasticjob_operator.plan.state.evidence import CAUSES, Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus


def drain_for_deleted_pods(p: Pass) -> tuple[str, frozenset[str]]:
    """Begin, continue or end the drain of a running round for members that are on their way out. Returns what
    is waited for before it drains, and the pods (by UID) whose workers the round still needs."""
    if p.round.phase != Phase.ACTIVE.value or p.round.established_time is None:
        return "", frozenset()
    going = [(member, pod) for member in p.status.members() if (pod := _departing(p, member)) is not None]
    if not going:
        return "", frozenset()
    needed = frozenset(one.uid for _, one in going)
    member, pod = going[0]
    change = pod_ends.disruption_of(p, pod, f"{pod.name} (group rank {member.group_rank})", member.group_rank)
    if change is None:
        return "", frozenset()
    limit = min(one.drain_seconds for _, one in going)
    left = _replacement_left(p, going) if change.cause != Cause.PREEMPTED else 0.0
    if left > 0:
        text = (
            f"{change.message}; waiting up to {left:.0f} s for its next pod to join before the round drains"
        )
        return text, needed
    if draining.holds(p, change, limit):
        return "", needed
    if p.job.spec.drain_seconds:
        begun = p.round.drain
        if begun is not None and begun.cause in CAUSES and begun.cause != change.cause:
            change = Evidence(begun.cause, begun.message)
        draining.end(p, change)
    return "", frozenset()


def _replacement_left(p: Pass, going: Sequence[tuple[ParticipantStatus, Pod]]) -> float:
    """Seconds that the round goes on, because the next one would be smaller, or would have to wait until the
    next pods have started. 0 where it drains or ends anyway, and for a pod that finds no node: it may need
    the place that is about to be free."""
    if p.round.drain is not None or p.job.spec.suspend or scaling.has_succeeded(p):
        return 0.0
    staying = p.round.members - len(going)
    if staying + len(p.joined()) >= min(p.round.members, p.job.spec.replicas) or not draining.takes_part(p):
        return 0.0
    slots = {pod.slot for _, pod in going}
    if any(pod.unschedulable and pod.slot in slots for pod in p.observed.pods if p.alive(pod)):
        return 0.0
    return min(
        p.left_since(pod.deletion_time or p.now.wall, pod.replace_seconds, JobWait.REPLACEMENT, pod.uid)
        for _, pod in going
    )


def _departing(p: Pass, member: ParticipantStatus) -> Pod | None:
    """The pod of a member that is being deleted while its workers still train, as far as is known."""
    pod = p.pods_by_uid.get(member.pod_uid)
    if pod is None or not pod.deleting or not pod.drain_seconds or member.state != MemberState.MEMBER:
        return None
    if pod.exit is not None or pod.ended or not pod.running or p.leaving(pod):
        return None
    return None if pod_ends.node_problem(p, pod) else pod
