"""How the workers of a round were started, warm or cold, and whether the next could be started warm: what its
members say where warm workers are on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import JobStatus, WorkerStarts

PREPARE_SECONDS = 60.0
"""A round does not grow for so long after its start while its members' interpreters are not ready. They are
made after the first step, or 30 s; imports have taken 13 s beside training, and the leader renews its Lease
every 10 s."""


def preparing(p: Pass) -> bool:
    """Whether a change now would have workers start that import torch first, and a later one would not."""
    leader, since = next(iter(p.status.members()), None), p.round.established_time
    lease = p.lease_of(leader.pod_uid) if leader is not None else None
    said = lease.starts if lease is not None else None
    if since is None or said is None or said.nonce != p.round.nonce or not said.preparing:
        return False
    return p.left_since(since, PREPARE_SECONDS, JobWait.WARM_WORKERS, p.round.number) > 0


def count(p: Pass) -> None:
    """Take in what the members of the current round say. What was said stays when a Lease goes."""
    if not p.status.round_history or p.status.round_history[0].number != p.round.number:
        return
    warm = cold = 0
    reasons: Counter[str] = Counter()
    for member in p.status.members():
        lease = p.lease_of(member.pod_uid)
        said = lease.starts if lease is not None else None
        if said is None or said.nonce != p.round.nonce:
            continue
        warm, cold = warm + said.warm, cold + said.cold
        reasons[said.cold_reason] += said.cold
    newest = p.status.round_history[0]
    known = newest.worker_starts or WorkerStarts()
    if warm + cold == 0 or warm + cold < known.warm + known.cold:
        return
    reason = reasons.most_common(1)[0][0] if cold else ""
    newest = replace(newest, worker_starts=WorkerStarts(warm, cold, reason))
    p.set(round_history=(newest, *p.status.round_history[1:]))


def without(status: JobStatus) -> JobStatus:
    """The status without these counts: they are worth no write of their own."""
    if not any(entry.worker_starts for entry in status.round_history):
        return status
    return replace(status, round_history=tuple(replace(h, worker_starts=None) for h in status.round_history))
