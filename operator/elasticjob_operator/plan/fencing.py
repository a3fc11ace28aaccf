"""Fencing: two rounds of a job do not train at once.

A round is published once at least one member of the round before is known to have left it: training needs
all of them. If a whole round is lost with its nodes, or cut off, nothing shows that, and the job waits until
an administrator says that the machines are off. A job whose checkpoints are fenced by the round's number may
limit that wait (``failurePolicy.fencing``): then it is enough that every member was silent for so long.
"""

from __future__ import annotations

from elasticjob.rounds.candidates import Defer, listed
from elasticjob_operator.plan import members, termination
from elasticjob_operator.plan.pass_state import Pass
from elasticjob_operator.plan.waits import JobWait


def hold(p: Pass) -> Defer | None:
    """Why the next round may not be published yet; None if it may."""
    if members.fencing_satisfied(p):
        return None
    pods = listed([m.pod_name for m in p.status.members()])
    unknown = f"no member of the previous round is known to have stopped ({pods})"
    seconds = p.job.spec.fencing_after
    left = _left(p, seconds) if seconds is not None else None
    if left == 0:
        p.unfenced = f"nothing proves that round {p.round.number} has stopped (failurePolicy.fencing)"
        return None
    p.reason = "WaitingForFencing"
    if left is None:
        return Defer(None, f"{unknown}, and two rounds must not train at once{_remedy(p)}")
    how = f"in {left:.0f} s without a sign of life from them the next round begins all the same"
    return Defer(left, f"{unknown}; {how} (failurePolicy.fencing){_remedy(p)}")


def tell(p: Pass, number: int) -> str:
    """Say of the round that is published now that nothing proves the end of the one before, if so."""
    if not p.unfenced:
        return ""
    silent = {m.pod_name for m in p.status.members()}
    p.judged_silent |= silent
    p.judged_unheard |= silent
    p.event("RoundNotFenced", f"round {number} begins although {p.unfenced}", warning=True)
    return f"; {p.unfenced}"


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
    nodes = sorted({pod.node for pod in pods if termination.node_problem(p, pod)})
    if not nodes and p.observed.nodes is not None:
        return ""
    many = len(nodes) != 1
    off = f"node{'s' * many} {listed(nodes)} {'are' if many else 'is'}" if nodes else "the machines are"
    them, their = ("them", "their Node objects") if many else ("it", "its Node object")
    return (
        f"; if {off} off, taint {them} with node.kubernetes.io/out-of-service, or delete {their}, or delete "
        "the pods with --force"
    )
