"""What a queue asks and grants: part of a job, as the planner sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QueueRequest:
    """The labels of an ElasticJob that put it into a queue: the LocalQueue, and a WorkloadPriorityClass if
    there is one."""

    name: str
    priority_class: str = ""


@dataclass(frozen=True)
class Grant:
    """How many ``pods`` of a job in a queue may live: 0 until the queue has admitted the job, and from when
    it stops it. ``sentence``: what the queue waits for or asks for, in words; "" if nothing is missing.
    ``quota``: how many pods have quota, which may be more than the job asks for; pods beyond it have to end
    at once. ``placed``: the template has what the queue says of the pods' nodes; none is made before.
    ``base``: how many of the pods were admitted together, at first; 0 where that is not known."""

    pods: int
    sentence: str = ""
    quota: int = 0
    placed: bool = True
    base: int = 0
