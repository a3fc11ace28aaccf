"""A job that is being deleted and that a finalizer keeps: training ends, as the deletion asks.

Without a finalizer the object is gone at once, and Kubernetes deletes its pods. With one it stays, and its
pods with it, for as long as the finalizer's owner takes. So the round is closed, pods are deleted gracefully
and no other is made, and the condition says which finalizer the object waits for. A deletion is never taken
back. No finalizer is touched, and the job is neither Complete nor Failed.
"""

from __future__ import annotations

from elasticjob.contract.round_record import Phase
from elasticjob.contract.text import counted
from elasticjob_operator.plan.changes.suspension import running
from elasticjob_operator.plan.state.model import DeletePod
from elasticjob_operator.plan.state.pass_state import Pass

REASON = "Deleting"
"""The reason of the condition Training."""

_DELETED = "the job is being deleted"


def wanted(p: Pass) -> bool:
    """Whether the job is being deleted, and a finalizer keeps it."""
    return bool(p.job.finalizers)


def orphaned(p: Pass) -> bool:
    """Whether its pods were taken from the job (``kubectl delete --cascade=orphan``): they train on, as was
    asked for."""
    if p.job.spec.template is None:
        return False
    there = [pod for pod in p.observed.pods if pod.uid in p.status.member_uids]
    return bool(there) and not any(pod.of_this_job for pod in there)


def end(p: Pass) -> None:
    """Close the round, once, and delete the pods; others' pods learn that the round is over. Where the pods
    were orphaned, nothing is done: a closed round would end their training."""
    if orphaned(p):
        return
    if p.round.phase != Phase.CLOSED.value:
        p.set_round(phase=Phase.CLOSED.value, drain=None, resumed=False)
        if p.round.end is None:
            p.set_end(time=p.now.wall, message=_DELETED)
        p.status = p.status.stopped(p.now.wall)
        p.set(start_time=None)
        p.event("JobDeleted", sentence(p))
    p.set_round(members=0, world_size=None, leader_pod_name="")  # no pod trains, and people look here
    p.set(replicas=0)
    if p.job.spec.template is None:
        return
    for pod in running(p):
        if not pod.deleting:
            p.actions.append(DeletePod(pod.name, pod.uid, _DELETED))


def sentence(p: Pass) -> str:
    """What the object still waits for."""
    kept = " and ".join(p.job.finalizers)
    if orphaned(p):
        return (
            f"{_DELETED}, and its pods were left to run on (kubectl delete --cascade=orphan); "
            f"what still keeps it is the finalizer {kept}"
        )
    text = f"{_DELETED}, its training has ended; what still keeps it is the finalizer {kept}"
    pods = len(running(p))
    if pods:
        text += f"; {counted(pods, 'pod')} {'is' if pods == 1 else 'are'} still terminating"
    return text
