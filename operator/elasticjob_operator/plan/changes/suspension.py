"""Suspension: while ``spec.suspend`` is true the job has no pods and forms no round; everything else is kept.

The round's number, attempts, accounts, history and excluded nodes are kept. Failures from before the
suspension are charged as they would have been at the next round. The suspension itself, and the pods that end
in the course of it, are not charged: each slot moves on to its next attempt at once, so that the old pods are
replaced however fast the job is resumed.

Pods are deleted gracefully. Pods that had already ended are kept for their logs. The members stay in
``status.participants`` until their pods are gone, because a round that follows soon must be able to see that
one of them has left (fencing).
"""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.text import counted, listed
from elasticjob.rounds.causes import Cause
from elasticjob.rounds.state import MemberState
from elasticjob_operator.plan.changes import draining
from elasticjob_operator.plan.charges import backoff, early_ends, revision
from elasticjob_operator.plan.rounds.rounds import charge_last_round
from elasticjob_operator.plan.state.evidence import CAUSES, Evidence
from elasticjob_operator.plan.state.model import DeletePod, Pod
from elasticjob_operator.plan.state.outlook import Waiting
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import RESUMED_MESSAGE

_SUSPENDED = "the job was suspended"


def reason(p: Pass) -> str:
    """The reason of the condition Training while the job has no pods: its user's wish, or its queue's."""
    return "Suspended" if p.job.grant is None else "Queued"


def _why(p: Pass) -> str:
    return _SUSPENDED if p.job.grant is None else f"held by its queue: {p.job.grant.sentence}"


def wanted(p: Pass) -> bool:
    """Whether the job should be suspended; pods of others are not ours to delete."""
    return p.job.spec.suspend and p.job.spec.template is not None


def drains(p: Pass) -> bool:
    """Whether the running round goes on for now, because it drains before the job is suspended."""
    return not p.status.is_true("Suspended") and draining.holds(p, Evidence(Cause.SUSPENDED, _why(p)))


def suspend(p: Pass) -> str:
    """End the round and free all slots; done once. Returns why a failure rule ends the job, "" if none
    does."""
    if p.status.is_true("Suspended"):
        return ""
    backoff.record_early_pod_ends(p)
    failed_by_rule = ""
    if p.round.phase == "Active":
        draining.end(p, Evidence(Cause.SUSPENDED, _why(p)))
    else:
        failed_by_rule = charge_last_round(p)
        if p.round.resumed:  # and suspended again before there was a round
            p.set_round(resumed=False)
            p.set_end(cause=Cause.SUSPENDED, account=CAUSES[Cause.SUSPENDED], message=_why(p))
    failed_by_rule = early_ends.charge(p) or failed_by_rule
    revision.forget(p, p.pods_by_uid.keys())
    _replace_all_pods(p)
    p.status = p.status.stopped(p.now.wall)
    p.set(start_time=None)
    if p.job.grant is not None and not running(p):
        p.event("JobQueued", p.job.grant.sentence)
    else:
        p.event("JobSuspended", f"{_why(p)}; its pods are being deleted, its status is kept")
    return failed_by_rule


def hold(p: Pass) -> Waiting:
    """Delete the pods of a suspended job; return what is still there."""
    pods = running(p)
    for pod in pods:
        if not pod.deleting:
            p.actions.append(DeletePod(pod.name, pod.uid, _why(p)))
    there = {pod.uid for pod in pods}
    members = p.status.members()
    p.set(participants=members if any(m.pod_uid in there for m in members) else (), replicas=0)
    p.set_round(members=0, world_size=None, leader_pod_name="")  # no pod trains, and people look here
    names = listed([pod.name for pod in pods])
    why = f"waiting for {names} to end" if pods else "no pods until spec.suspend is false"
    if p.job.grant is not None:
        why = f"{p.job.grant.sentence}; {why}" if pods else p.job.grant.sentence
    return Waiting(why, reason=reason(p))


def running(p: Pass) -> list[Pod]:
    """The job's pods that have not ended."""
    return [pod for pod in p.observed.pods if pod.of_this_job and not pod.ended]


def sentence(p: Pass) -> str:
    """The pods that a suspended job still has, in words."""
    pods = len(running(p))
    if p.job.grant is not None:
        ending = f"; {counted(pods, 'pod')} {'is' if pods == 1 else 'are'} still terminating" if pods else ""
        return f"held by its queue: {p.job.grant.sentence}{ending}"
    if pods:
        return f"suspended; {counted(pods, 'pod')} {'is' if pods == 1 else 'are'} still terminating"
    return "suspended: the job has no running pods, its status is kept; set spec.suspend to false to resume"


def resume(p: Pass) -> None:
    """Start the job, or let it go on: it is active from now on, and its next round waits like the first."""
    if not p.status.is_true("Suspended"):
        if p.status.start_time is None:
            p.set(start_time=p.now.wall)
        return
    p.set(start_time=p.now.wall)
    p.event("JobResumed", RESUMED_MESSAGE)
    if p.round.number > 0:
        p.set_round(
            resumed=True,
            failure_offset_milliseconds=None,
            establish_failures=0,
            early_end_streak=0,
            quorum_time=None,
            idle_since_time=None,
            idle_seconds=0,
            unarrived_pods=(),
            ineligible_leaders=(),
            newcomers=(),
        )


def _replace_all_pods(p: Pass) -> None:
    """Free all slots; what happens to the present pods is no longer evidence."""
    p.set(attempts=tuple(attempt + 1 if attempt >= 0 else attempt for attempt in p.status.attempts))
    p.set_members(tuple(replace(m, state=MemberState.LOST, message=_why(p)) for m in p.status.members()))
