"""Pods that the scheduler places together (``spec.gangScheduling``): what is said of those that it holds.

As many pods as the job does not train without are placed together, or none. Kubernetes' own scheduler does
not even look at fewer, and writes nothing about it into their status. The plugin Coscheduling lets pods wait
for one that finds no node, and writes only about that one. So it is said here.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob.contract.text import counted
from elasticjob_operator.plan.state.model import GangScheduling, Job, Pod
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import JobStatus


def minimum(job: Job, status: JobStatus) -> int:
    """How many pods are placed together: as many as the job needs to train now. A job of a fixed size that
    grows trains on with its former size, and replaces lost pods, until all pods of the new one can train."""
    return min(job.spec.least, status.min_replicas or job.spec.least)


def held(p: Pass) -> list[Pod]:
    """The pods that wait for others, without which the scheduler does not place them, and of which it says
    nothing."""
    others = [pod for pod in _gathered(p) if not pod.unschedulable]
    return [pod for pod in others if _is_pending(pod)] if len(others) < _minimum(p) else []


def sentence(p: Pass, waiting: Sequence[Pod]) -> str:
    """A sentence on these."""
    return f"the scheduler holds {counted(len(waiting), 'pod')} until {_minimum(p)} can be placed together"


def outgrown(p: Pass) -> tuple[list[Pod], str]:
    """Pods without a node in a group that would hold them for good, and why it would."""
    gathered, fixed, least = _gathered(p), p.observed.fixed_gang, minimum(p.job, p.status)
    if fixed is not None and fixed > least:
        why = f"its PodGroup gathers {fixed} pods; the job needs {least} by now"
    elif len(gathered) < _minimum(p) and any(not pod.group and p.alive(pod) for pod in p.observed.pods):
        why = f"its PodGroup gathers {counted(_minimum(p), 'pod')}, and others of the job are in none"
    else:
        return [], ""
    return [pod for pod in gathered if _is_pending(pod)], why


def _minimum(p: Pass) -> int:
    return minimum(p.job, p.status) if p.observed.fixed_gang is None else p.observed.fixed_gang


def _gathered(p: Pass) -> list[Pod]:
    if p.job.spec.gang_scheduling == GangScheduling.NONE:
        return []
    return [pod for pod in p.observed.pods if pod.group and p.alive(pod)]


def _is_pending(pod: Pod) -> bool:
    return not (pod.node or pod.running)
