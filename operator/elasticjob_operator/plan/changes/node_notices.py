"""Nodes that are about to go: a taint of theirs says so before their pods are evicted.

Clouds and autoscalers set such taints (``settings.NOTICE_TAINTS``). A pod on such a node that does not
tolerate it leaves its slot to the next attempt at once, which starts while the old pod trains on. The round
drains for the departure when it would lose no size by it, or when ``READY_SECONDS`` have passed. Where the
script takes no part in drains, it ends when it would lose no size, and else when the pod is taken away, as
without a notice. If the taint is gone by then, the place that the old pod holds may be all that its
successor waits for: it ends, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elasticjob.contract.round_record import Phase
from elasticjob.contract.text import listed, node_words
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.changes import draining, scaling
from elasticjob_operator.plan.state.evidence import Evidence
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import ParticipantStatus

READY_SECONDS = 60.0
"""How long those that replace members are waited for before the round drains without them. AWS gives two
minutes of notice, perhaps with no eviction before the end, and the drain needs its time, too."""

MAX_EVENTS = 3
"""How many Events on such pods one pass sends."""

Going = Sequence[tuple[ParticipantStatus, Pod]]


def replace_pods_on_tainted_nodes(p: Pass) -> frozenset[str]:
    """Replace pods whose nodes are about to go. Returns those among them (by UID) whose workers the running
    round still needs."""
    if not _replaceable(p):
        return frozenset()
    if _goes_on(p):
        _replace(p, [pod for pod in p.observed.pods if pod.notice and p.alive(pod)])
    if p.round.phase == Phase.BROKEN.value:
        _give_up(p)
    return frozenset(pod.uid for _, pod in _going(p))


def drain_for_tainted_nodes(p: Pass) -> str:
    """Begin, continue or end the drain of a running round for its members on such nodes; return what is
    waited for before it drains."""
    if p.round.established_time is None or not _replaceable(p) or p.job.spec.suspend:
        return ""
    if p.round.drain is None and not _goes_on(p):
        return ""
    going = _going(p)
    return _leave(p, going) if going else ""


def _goes_on(p: Pass) -> bool:
    """Whether the job is to train on, so that a planned change may end its round."""
    return not p.job.spec.suspend and not scaling.has_succeeded(p)


def _going(p: Pass) -> Going:
    return [(m, pod) for m in p.status.members() if (pod := _on_its_way_out(p, m)) is not None]


def _replace(p: Pass, noticed: list[Pod]) -> None:
    """The next attempt takes the slots of these pods."""
    p.replace_pods(noticed)
    for pod in noticed[:MAX_EVENTS]:
        p.event("NodeNotice", f"{_leaves(pod, pod.name)}; its next pod is created", pod=pod.name)


def _give_up(p: Pass) -> None:
    """The round has ended for something else. Its members that have left their slots come back from it like
    the others, or show what became of them; after that their pods go, and that is no evidence."""
    going = {}
    for member in p.status.members():
        pod, lease = p.pods_by_uid.get(member.pod_uid), p.lease_of(member.pod_uid)
        if pod is None or lease is None or lease.record is None or member.state == MemberState.LOST:
            continue
        if lease.record.id != member.id and p.is_replaced(pod) and _runs(p, pod):
            going[pod.uid] = _leaves(pod, pod.name)
    p.mark_lost(going)


def _leave(p: Pass, going: Going) -> str:
    member, pod = going[0]
    text = _leaves(pod, f"{pod.name} (group rank {member.group_rank})")
    if len(going) > 1:
        text = f"{listed([one.name for _, one in going])} leave their nodes; {text}"
    change = Evidence(
        Cause.PREEMPTED,
        text,
        pod.name,
        member.group_rank,
        pod_uid=pod.uid,
        node_name=pod.node,
        reasons=tuple(filter(None, (pod.notice,))),
    )
    drain = p.round.drain
    if drain is not None and drain.cause != change.cause:
        return ""  # it drains for another change, which ends it
    staying = p.round.members - len(going)
    ready = staying + len(p.joined()) >= min(p.round.members, p.job.spec.replicas)
    left = p.waits.left(JobWait.NODE_NOTICE, pod.uid, READY_SECONDS)
    if drain is None and not ready and left > 0:
        return f"{text}; waiting up to {READY_SECONDS:.0f} s for its next pod to join before the round drains"
    if (drain is not None and draining.all_have_succeeded(p)) or draining.holds(p, change):
        return ""
    if drain is None and not ready and any(one.notice for _, one in going):
        return f"{text}; waiting for its next pod to join"
    draining.end(p, replace(change, message=drain.message) if drain is not None else change)
    p.mark_lost({one.uid: _leaves(one, one.name) for _, one in going})
    return ""


def _replaceable(p: Pass) -> bool:
    """Whether a pod that replaces another may get another node."""
    template = p.job.spec.template
    return template is not None and not (template.get("spec") or {}).get("nodeName")


def _on_its_way_out(p: Pass, member: ParticipantStatus) -> Pod | None:
    """The pod of a member that has left its slot to the next attempt and trains on, also when the taint is
    gone again; None when something has taken it away."""
    pod = p.pods_by_uid.get(member.pod_uid)
    if pod is None or not p.is_replaced(pod) or not _runs(p, pod):
        return None
    return pod if member.state == MemberState.MEMBER or member.succeeded else None


def _runs(p: Pass, pod: Pod) -> bool:
    """Whether nothing has ended this pod, or is about to."""
    return pod.running and pod.exit is None and not (pod.ended or pod.deleting or p.leaving(pod))


def _leaves(pod: Pod, who: str) -> str:
    which = f"has the taint {pod.notice}" if pod.notice else "had a taint that said that it would go"
    return f"{who} leaves {node_words(pod.node)}, which {which}"
