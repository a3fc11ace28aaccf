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
from elasticjob_operator.plan.rounds.rounds import drains_into_memory
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


def sentence(asked: Job) -> str:
    """That the change which this job asks for waits, and for what, as a clause."""
    spec = asked.spec
    what = "suspending" if spec.suspend else f"shrinking to {spec.replicas}"
    return (
        f"{what} waits until all workers call should_stop, up to {spec.drain_seconds} s, because only "
        "memory holds the steps since the last save"
    )


def _drained_into_memory(p: Pass) -> int:
    """The number of the round that drains, or has drained, into memory alone; 0 if storage has its steps, or
    can have them from the workers of the present round."""
    r, history = p.round, p.status.round_history
    if p.job.spec.memory_checkpoints is None:
        return 0
    if drains_into_memory(p):
        return r.number
    active = r.phase == Phase.ACTIVE.value
    if active and (r.drain is not None or draining.takes_part(p)):
        return 0
    ended = history[1:] if active else history
    end = ended[0].end if ended else None
    stopped = end is not None and (end.cause, end.drain) == (Cause.SCALED_UP, draining.HowStopped.STOPPED)
    return ended[0].number if stopped else 0
