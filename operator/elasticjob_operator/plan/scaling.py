"""A running round grows or shrinks: a planned change, which breaks the round at once for now."""

from __future__ import annotations

from elasticjob.core.rounds import listed
from elasticjob_operator.plan.causes import Evidence
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.rounds import VERDICT_SECONDS, end_round


def rescale(p: Pass) -> None:
    """Shrink when there are more members than wanted; grow when newcomers have joined and wait.

    New pods are brought up and joined as standbys before the running round is touched, and let in
    together. Bounds that change under a running round break nothing by themselves (I3).
    """
    wanted, have = p.job.spec.replicas, p.round.members
    if have > wanted:
        end_round(p, [Evidence("ScaledDown", f"scaled down from {have} to {wanted} members")])
        return
    if have == wanted or p.round.established is None:
        return
    joined = p.joined()
    if not joined:
        return
    members = p.status.member_uids
    seen = {pod.uid for pod, _ in joined}
    on_their_way = [
        pod
        for pod in p.observed.pods
        if p.alive(pod)
        and pod.uid not in members
        and pod.uid not in seen
        and (
            pod.node or (not pod.unschedulable and p.timers.left(f"verdict:{pod.name}", VERDICT_SECONDS) > 0)
        )
    ]
    being_made = [
        slot
        for slot in (p.missing_slots() if p.job.spec.template is not None else [])
        if p.timers.left(f"verdict:slot {slot}", VERDICT_SECONDS) > 0
    ]
    full = have + len(joined) >= wanted or not (on_their_way or being_made)
    if full or p.timers.left(f"scaleup:{p.round.number}", p.job.spec.scale_up_delay) == 0:
        to = min(wanted, have + len(joined))
        names = listed([pod.name for pod, _ in joined])
        end_round(p, [Evidence("ScaledUp", f"{names} joined: growing from {have} to {to} members")])
