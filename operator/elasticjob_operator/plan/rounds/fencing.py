"""Fencing: of two rounds of a job only the later one makes progress that counts.

A round is published once at least one member of the round before is known to have left it: training needs
all of them. If a whole round is lost with its nodes, or cut off, nothing shows that, and the job waits until
an administrator says that the machines are off.

A round whose workers all save with ``elasticjob.checkpoint`` needs no such proof: the next round claims the
folder, and from then on nothing that the one before saves counts. Its leader says so while it runs. A job
whose checkpoints are fenced in another way may limit the wait (``failurePolicy.fencing``): then it is enough
that every member was silent for so long.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticjob.contract.text import listed, node_words
from elasticjob_operator.plan.losses import members, pod_ends
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.outlook import Waiting
from elasticjob_operator.plan.state.pass_state import Pass

REASON = "WaitingForFencing"
"""The reason of the condition Training, and of the Event when the wait begins."""

MAX_NAMED = 8
"""Members that the sentence names."""


@dataclass(frozen=True)
class Fence:
    """Whether the next round may begin, as far as the one before is concerned."""

    waiting: Waiting | None = None
    """Why it may not begin yet."""
    safe: str = ""
    """It begins without proof that the one before has stopped, and why that is safe."""
    unsafe: str = ""
    """It begins without such a proof, although that is not known to be safe."""


def fence(p: Pass) -> Fence:
    """Whether the next round may be published now."""
    if members.fencing_satisfied(p):
        return Fence()
    if p.round.fenced and not p.job.spec.fencing_needs_proof:
        return Fence(
            safe=f"nothing proves that round {p.round.number} has stopped, but all its workers use "
            "elasticjob.checkpoint, which accepts nothing from them once the next round has begun"
        )
    seconds = p.job.spec.fencing_after
    left = _left(p, seconds) if seconds is not None else None
    if left == 0:
        return Fence(unsafe=f"nothing proves that round {p.round.number} has stopped (failurePolicy.fencing)")
    text = f"{_why(p)}. It goes on as soon as one of them is known to have stopped, or comes back"
    if left is not None:
        text += f", or after {left:.0f} s without a sign of life from any of them (failurePolicy.fencing)"
    text += _remedy(p)
    before = p.before.condition("Training")
    if before is None or before.reason != REASON:
        p.event("WaitingForFencing", text, warning=True)
    return Fence(Waiting(text, reason=REASON))


def note(p: Pass) -> None:
    """Take in that the checkpoints of the current round are fenced: its leader says so once."""
    leader = next(iter(p.status.members()), None)
    lease = p.lease_of(leader.pod_uid) if leader is not None else None
    if lease is not None and lease.fenced and lease.fenced == p.round.nonce:
        p.set_round(fenced=True)


def _why(p: Pass) -> str:
    """Which members keep the next round from beginning, each with its node."""
    last = p.status.members()
    named = [f"{m.pod_name} on {node_words(m.node_name)}" for m in last[:MAX_NAMED]]
    more = f" and {len(last) - MAX_NAMED} more" if len(last) > MAX_NAMED else ""
    who = f"of round {p.round.number} ({', '.join(named)}{more})"
    pods = [p.pods_by_uid[m.pod_uid] for m in last if m.pod_uid in p.pods_by_uid]
    if all(pod_ends.node_problem(p, pod) for pod in pods):
        return f"training waits: all members {who} are out of reach and may still be training"
    return f"training waits: no member {who} is known to have stopped, and two rounds must not train at once"


def report(p: Pass, fence: Fence, number: int) -> str:
    """Say of the round that is published now that nothing proves the end of the one before, if so."""
    if fence.safe:
        p.event("RoundFenced", f"round {number} begins at once: {fence.safe}")
        return f"; {fence.safe}"
    if not fence.unsafe:
        return ""
    silent = {m.pod_name for m in p.status.members()}
    p.judged_silent |= silent
    p.judged_unheard |= silent
    p.event(
        "RoundNotFenced",
        f"round {number} begins although {fence.unsafe}; make sure that only this round's pods write "
        "checkpoints, and look whether the machines of the round before are off",
        warning=True,
    )
    return f"; {fence.unsafe}"


def _left(p: Pass, seconds: int) -> float:
    """Seconds until the round has been over, and each of its members silent, for so long."""
    ended = p.round.end.time if p.round.end is not None else None
    left = p.left_since(ended or p.now.wall, seconds, JobWait.FENCING, p.round.number)
    for member in p.status.members():
        lease = p.lease_of(member.pod_uid)
        silent = lease.silent if lease is not None else p.waits.elapsed(JobWait.FENCING, member.pod_uid)
        left = max(left, seconds - silent)
    if left > 0:
        p.waits.declare(JobWait.FENCING, p.round.number, seconds, left)
        p.waits.wake(left + 1)  # silence makes no event
    return left


def _remedy(p: Pass) -> str:
    """What an administrator can do who knows that the machines are off. Pods on ready nodes end by
    themselves."""
    pods = [p.pods_by_uid[uid] for uid in sorted(p.status.member_uids) if uid in p.pods_by_uid]
    nodes = sorted({pod.node for pod in pods if pod_ends.node_problem(p, pod)})
    if not nodes and p.observed.nodes is not None:
        return ""
    node = nodes[0] if len(nodes) == 1 else "NODE"
    if len(nodes) == 1:
        which = f"{node_words(node)} is certainly off"
    elif nodes:
        which = (
            f"one of these nodes is certainly off ({listed([node_words(n) for n in nodes])}; one is enough)"
        )
    else:
        which = "one of their nodes is certainly off (one is enough)"
    return (
        f". If {which}: kubectl taint node {node} "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, or delete its Node object"
    )
