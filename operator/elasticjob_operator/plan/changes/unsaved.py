"""Steps that only memory holds: no planned change takes pods away before storage has them, too.

A round that grows drains into the memory of its pods alone (``elasticjob.memory``), since all of them stay.
Until it has ended, and the workers of the next round have all called ``should_stop``, suspension and
shrinking wait: that round can drain into storage. They wait for ``drainSeconds`` at most, and as long again
once the next round is established.
"""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.round_record import Phase
from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.changes import draining
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import Job
from elasticjob_operator.plan.state.pass_state import Pass


def kept(p: Pass) -> Job:
    """The job to plan with: without the change that has to wait, if there is one."""
    spec, r = p.job.spec, p.round
    takes_pods = spec.suspend or spec.replicas < r.members
    if not takes_pods or spec.template is None or p.status.is_true("Suspended"):
        return p.job
    drained = _drained_into_memory(p)
    since = drained if r.established_time is None else r.number
    if not drained or p.waits.left(JobWait.UNSAVED, since, spec.drain_seconds) == 0:
        return p.job
    return replace(p.job, spec=replace(spec, suspend=False, replicas=max(spec.replicas, r.members)))


def sentence(p: Pass, kept: Job) -> str:
    """What waits, and for what, as a clause; "" if nothing does. ``p`` has the job as its user wants it."""
    asked = p.job.spec
    if kept is p.job:
        return ""
    what = "suspending" if asked.suspend else f"shrinking to {asked.replicas}"
    return (
        f"{what} waits until all workers call should_stop, up to {asked.drain_seconds} s, because only "
        "memory holds the steps since the last save"
    )


def _drained_into_memory(p: Pass) -> int:
    """The number of the round that drains, or has drained, into memory alone; 0 if storage has its steps, or
    can have them from the workers of the present round."""
    r, history = p.round, p.status.round_history
    if p.job.spec.memory_checkpoints is None:
        return 0
    if r.drain is not None and r.phase == Phase.ACTIVE.value:
        return r.number if r.drain.cause == Cause.SCALED_UP else 0
    if r.phase == Phase.ACTIVE.value and draining.takes_part(p):
        return 0
    ended = history[1:2] if r.phase == Phase.ACTIVE.value else history[:1]
    for one in ended:
        end = one.end
        if end is not None and end.cause == Cause.SCALED_UP and end.drain == draining.HowStopped.STOPPED:
            return one.number
    return 0
