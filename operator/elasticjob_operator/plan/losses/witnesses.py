"""Who speaks for or against a member of a running round: its own Lease, and the members that watch its
heartbeats."""

from __future__ import annotations

from elasticjob.contract.participant_record import (
    LEADER_RENEW_SECONDS,
    MEMBER_RENEW_SECONDS,
    AnnouncedState,
)
from elasticjob.rounds.reports import LEADER_STALE_SECONDS, accuses
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.losses import pod_ends
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Participant
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus

LATE_RENEWALS = 1.5
"""A member whose Lease is older than this many intervals may be cut off from the API server: it is no witness
for its leader, and would not hear of the end of its round."""


def silent(p: Pass, member: ParticipantStatus, lease: Participant | None, limit: float | None = None) -> bool:
    """The second witness against a pod on a node that is not ready: it was reported unreachable, or its Lease
    was not renewed three times. A kubelet that died alone takes no training with it."""
    if member.state == MemberState.UNREACHABLE:
        return True
    silent = lease.silent if lease is not None else p.waits.elapsed(JobWait.SILENCE, member.pod_uid)
    limit = 3 * renew_seconds(member) if limit is None else limit
    left = limit - silent
    if left >= 0:
        p.waits.declare(JobWait.SILENCE, member.pod_uid, limit, left)
        p.waits.wake(left + 1)  # silence makes no event
    else:
        p.judged_silent.add(member.pod_name)
        p.judged_unheard.add(member.pod_name)
    return left < 0


def renew_seconds(member: ParticipantStatus) -> float:
    """How often a member of a running round renews its Lease."""
    return LEADER_RENEW_SECONDS if member.group_rank == 0 else MEMBER_RENEW_SECONDS


def vouched_for(p: Pass, member: ParticipantStatus) -> bool:
    """Whether a member that watches this one's heartbeats is heard of and does not miss them: a node that is
    not ready and a silent Lease may both come from one broken path to the API server, and training goes on by
    another."""
    if p.round.phase != "Active" or p.round.established_time is None or member.state != MemberState.MEMBER:
        return False
    leader, *others = p.status.members()
    witnesses = others if member.group_rank == 0 else [leader]
    return any(
        _is_heard(p, witness) and not accuses(p.report_of(witness.pod_uid), witness.state)
        for witness in witnesses
    )


def _is_heard(p: Pass, member: ParticipantStatus) -> bool:
    """Whether this member of the running round lives as far as its pod, its node and its Lease tell: it says
    in its Lease, within seconds, which members it misses."""
    pod = p.pods_by_uid.get(member.pod_uid)
    lease = p.participant(pod) if pod is not None and member.state == MemberState.MEMBER else None
    if pod is None or lease is None or lease.record is None or lease.record.id != member.id:
        return False
    if (
        not (p.alive(pod) or pod.uid in p.held)
        or pod_ends.node_problem(p, pod)
        or lease.record.state != AnnouncedState.JOINING.value
    ):
        return False
    late = LEADER_STALE_SECONDS if member.group_rank == 0 else LATE_RENEWALS * MEMBER_RENEW_SECONDS
    left = late - lease.silent
    if left >= 0:
        p.waits.wake(left + 1)  # silence makes no event
    return left >= 0
