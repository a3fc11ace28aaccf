"""Pods that the scheduler places together (``spec.gangScheduling``): what is said of those that it holds.

As many pods as the job does not train without are placed together, or none. Kubernetes' own scheduler does
not even look at fewer, and writes nothing about it into their status. The plugin Coscheduling lets pods wait
for one that finds no node, and writes only about that one. So it is said here.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob.contract.text import counted
from elasticjob_operator.plan.state.model import GangScheduling, Pod
from elasticjob_operator.plan.state.pass_state import Pass


def held(p: Pass) -> list[Pod]:
    """The pods that wait for others, without which the scheduler does not place them, and of which it says
    nothing."""
    others = [pod for pod in _gathered(p) if not pod.unschedulable]
    return [pod for pod in others if _is_pending(pod)] if len(others) < _minimum(p) else []


def sentence(p: Pass, waiting: Sequence[Pod]) -> str:
    """A sentence on these."""
    return f"the scheduler holds {counted(len(waiting), 'pod')} until {_minimum(p)} can be placed together"


def outgrown(p: Pass) -> list[Pod]:
    """Pods without a node in a group that gathers more pods than the job now needs, and cannot be changed."""
    if p.observed.fixed_gang is None or p.observed.fixed_gang <= p.job.spec.least:
        return []
    return [pod for pod in _gathered(p) if not (pod.node or pod.running)]


def _minimum(p: Pass) -> int:
    return p.job.spec.least if p.observed.fixed_gang is None else p.observed.fixed_gang


def _gathered(p: Pass) -> list[Pod]:
    if p.job.spec.gang_scheduling == GangScheduling.NONE:
        return []
    return [pod for pod in p.observed.pods if pod.group and p.alive(pod)]


def _is_pending(pod: Pod) -> bool:
    return not (pod.node or pod.running)
