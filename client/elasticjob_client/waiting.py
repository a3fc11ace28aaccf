"""Whether a job is what a program waits for, and what is said when it is not."""

from __future__ import annotations

import math
from collections.abc import Callable

from elasticjob_client.errors import JobFailed
from elasticjob_client.resource import ElasticJob

_ENDED = ("Complete", "Failed")

Until = str | Callable[[ElasticJob], bool]
"""The type of a condition, or a function of the job."""


class NotYet(TimeoutError):
    """The time of a wait is over. ``state``: what the job does instead."""

    def __init__(self, text: str, state: str) -> None:
        super().__init__(f"{text}; {state}")
        self.state = state


def check_reached(job: ElasticJob, until: Until) -> bool:
    """Whether the job is what is waited for. Raises JobFailed if it never will be."""
    if callable(until):
        done = until(job)
    else:
        condition = job.condition(until)
        done = condition is not None and condition.status == "True"
    if done:
        return True
    if job.ended:
        ended = next((c for kind in _ENDED if (c := job.condition(kind)) and c.status == "True"), None)
        what = f"{ended.type}: {ended.reason}: {ended.message}" if ended else "has ended"
        raise JobFailed(f"ElasticJob {job.namespace}/{job.name} is {what}")
    return False


def check_timeout(seconds: float | None) -> None:
    """Raises ValueError for nan, which would never be over."""
    if seconds is not None and math.isnan(seconds):
        raise ValueError("timeout_seconds is nan: expected a number of seconds, or None")


def wait_timeout_error(job: ElasticJob, until: Until, away: str = "") -> NotYet:
    """The error of a wait whose time is over. ``away``: why the server does not say more."""
    training = job.condition("Training")
    state = (
        f"{training.reason}: {training.message}" if training else "without a status: no operator serves it"
    )
    wanted = "what was waited for" if callable(until) else until
    seen = f" (as last seen: {away})" if away else ""
    return NotYet(f"ElasticJob {job.namespace}/{job.name} is not {wanted} yet", f"it is {state}{seen}")
