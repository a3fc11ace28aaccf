"""The words of the tests on queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elasticjob_operator.plan.queue.changes import Change, Create, Use, changes
from elasticjob_operator.plan.queue.workloads import Workload, base_name, extra_name
from elasticjob_operator.plan.state.grant import QueueRequest
from elasticjob_operator.plan.state.model import Job, JobSpec

TEMPLATE = {"spec": {"containers": [{"name": "train", "resources": {"requests": {"cpu": "1"}}}]}}


def job(queue: str | None = "a", **spec: Any) -> Job:
    """A job of 8 that trains with 4, in queue a."""
    fields = {"replicas": 8, "min_replicas": 4, "template": TEMPLATE, **spec}
    request = None if queue is None else QueueRequest(queue, "high")
    return Job("ns", "mnist", "0123456789ab", 1, JobSpec(**fields), queue=request)


JOB = job()


def base(**fields: Any) -> Workload:
    """Its base, admitted."""
    told = {"count": 4, "queue": "a", "priority_class": "high", "priority": 100, "flavors": ("f",)}
    return Workload(base_name(JOB), "base", False, **{**told, "reserved": True, "admitted": True, **fields})


def extra(number: int, count: int, **fields: Any) -> Workload:
    """One of its extras, admitted."""
    told = {"queue": "a", "priority": 99, "reserved": True, "admitted": True, "flavors": ("f",)}
    return Workload(extra_name(JOB, number), f"x{number}", True, count, **{**told, **fields})


WAITS = {"reserved": False, "admitted": False, "flavors": ()}
"""Of a Workload that is not admitted."""
WHOLE = (base(), extra(0, 1), extra(1, 1), extra(2, 2))
"""All of it is admitted."""


def evicted(workload: Workload, reason: str = "Preempted") -> Workload:
    """Kueue asks for its quota: that and the condition Admitted stay."""
    return replace(workload, evicted=reason)


def wanted(workloads: Sequence[Workload], asked: Job = JOB, **use: Any) -> list[tuple[Any, ...]]:
    """The changes, each as its kind, the end of the Workload's name, and what is new."""
    running = max(use.get("pods", 0), use.get("joined", 0))
    return [_short(one) for one in changes(asked, workloads, Use(**{"running": running, **use}))]


def _short(change: Change) -> tuple[Any, ...]:
    name = change.name if isinstance(change, Create) else change.workload.name
    short = name.removeprefix(base_name(JOB)).removeprefix("-") or "base"
    fields = (getattr(change, field, None) for field in ("count", "priority", "outcome"))
    return (type(change).__name__, short, *(value for value in fields if value is not None))
