"""A running round grows or shrinks: a planned change, which breaks the round at once for now."""

from __future__ import annotations

from elasticjob_operator.plan.causes import Evidence
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.rounds import VERDICT_SECONDS, end_round

SCALE_UP_DELAY_SECONDS = 10.0
"""How long the first newcomer beside a running round is kept waiting for others on their way."""


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
    members = {m.uid for m in p.status.members()}
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
    full = have + len(joined) >= wanted or not on_their_way
    if full or p.timers.left(f"scaleup:{p.round.number}", SCALE_UP_DELAY_SECONDS) == 0:
        to = min(wanted, have + len(joined))
        names = ", ".join(pod.name for pod, _ in joined[:3]) + (" and others" if len(joined) > 3 else "")
        end_round(p, [Evidence("ScaledUp", f"{names} joined: growing from {have} to {to} members")])
