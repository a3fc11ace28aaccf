"""How many pods of a job in a queue may live, and the job as the planner is to see it.

The planner knows nothing of Workloads. A job that is not admitted is to it a suspended one, and a job with
fewer pods admitted than it asks for one that asks for fewer: it shrinks by a drain, as by ``kubectl scale``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from elasticjob.contract.text import counted
from elasticjob_operator.plan.queue.workloads import Workload, base_count, base_of, extras_of
from elasticjob_operator.plan.state.grant import Grant
from elasticjob_operator.plan.state.model import Job
from elasticjob_operator.plan.state.sized import sized


def is_queued(job: Job, workloads: Sequence[Workload]) -> bool:
    """Whether a queue decides on the job. One whose label was taken off stays in its queue while it has
    Workloads: until it is suspended or ends."""
    return job.spec.template is not None and (job.queue is not None or bool(workloads))


def grant(job: Job, workloads: Sequence[Workload], refused: str = "") -> Grant:
    """What the queue lets the job have. ``refused``: why its Workloads cannot be written, in words."""
    base, extras = base_of(workloads), extras_of(workloads)
    if base is None or not base.live:
        return Grant(0, "; ".join(filter(None, (_why_not_admitted(job, base), refused))))
    wanted, quota = job.spec.pods, base.count + sum(one.count for one in extras if one.live)
    pods = min(wanted, quota)
    sentence = _why_fewer(base, extras, pods, wanted) if pods < wanted else ""
    if job.spec.min_replicas is None and base.count < pods < job.spec.replicas:
        sentence += (
            f"; without minReplicas the job has {counted(base.count, 'member')} until all are admitted"
        )
    return Grant(pods, sentence, quota, base=base.count)


def unseen(job: Job, pods: int) -> Grant:
    """What a job has while its Workloads cannot be seen: it does not start, and keeps the ``pods`` it has."""
    name = job.queue.name if job.queue is not None else ""
    text = f"queue {name} cannot be asked: the operator cannot list workloads of kueue.x-k8s.io/v1beta2"
    kept = max(pods, base_count(job)) if pods else 0
    return Grant(kept, text, kept, placed=False)


def granted(job: Job, given: Grant, template: Mapping[str, Any] | None = None) -> Job:
    """The job as the planner sees it: with as many pods as may live, suspended without any. ``template``:
    with what the queue says of the pods' nodes. A job of a fixed size has no size between the one that was
    admitted at first and the one that is wanted."""
    spec = job.spec
    if spec.suspend:
        return job
    if given.pods == 0:
        return replace(job, grant=given, spec=replace(spec, suspend=True))
    replicas = min(spec.replicas, given.pods)
    if spec.min_replicas is None and replicas < spec.replicas:
        replicas = min(given.base or replicas, replicas)
    spares = min(spec.spares, given.pods - replicas)
    limited = replace(
        spec,
        replicas=replicas,
        min_replicas=None if spec.min_replicas is None else min(spec.min_replicas, replicas),
        spares=spares,
        beyond_size=min(spec.beyond_size, spares),
        template=spec.template if template is None else template,
    )
    return replace(job, grant=given, spec=sized(limited))


def _why_not_admitted(job: Job, base: Workload | None) -> str:
    if base is None:
        name = job.queue.name if job.queue is not None else ""
        return f"waiting for its place in queue {name}: its Workload is not made yet"
    where = f"queue {base.queue}"
    if base.deleting:
        return (
            f"its Workload {base.name} in {where} is being deleted; it is made again when its pods have ended"
        )
    if not base.active:
        return f"{where} does not admit it while spec.active of its Workload {base.name} is false"
    pods = counted(base.count, "pod")
    if base.must_leave:
        return f"{where} takes back the quota of its {pods} ({_said(base.evicted, base.message)})"
    if base.finished:
        return f"its Workload {base.name} in {where} is finished although the job is not; it is made again"
    if base.reserved:
        return f"{where} has reserved quota for {pods}; waiting for the queue's admission checks"
    return f"waiting for {where} to admit {pods}{_because(base)}"


def _why_fewer(base: Workload, extras: Sequence[Workload], pods: int, wanted: int) -> str:
    back = [one for one in extras if one.must_leave]
    if back:
        count = sum(one.count for one in back)
        return (
            f"queue {base.queue} takes back the quota of {counted(count, 'pod')} of {wanted} "
            f"({_said(back[0].evicted, back[0].message)})"
        )
    waiting = next((one for one in extras if not one.live), None)
    because = "" if waiting is None else _because(waiting)
    return f"queue {base.queue} admits {pods} of {counted(wanted, 'pod')}{because}"


def _because(workload: Workload) -> str:
    return f": {workload.message}" if workload.message else ""


def _said(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason
