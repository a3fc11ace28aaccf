"""What a write that has failed leads to: a later try, a line of the log, an Event."""

from __future__ import annotations

import logging

from elasticjob_operator.act.job_state import WriteState
from elasticjob_operator.logs import about
from elasticjob_operator.observe.errors import ApiError
from elasticjob_operator.plan.state.model import Event, Job, Target

_QUIET_FAILURES = 1
"""A write that may succeed in a moment is reported from the second failure on."""

log = logging.getLogger("elasticjob.operator")


def record_write_failure(
    job: Job, writes: WriteState, target: Target, error: ApiError, now: float
) -> list[Event]:
    """Record a write or a read that has failed; returns the Events that it deserves."""
    failing = writes.backoff.failed(target, error, now)
    quiet = failing.passing and failing.failures <= _QUIET_FAILURES
    level = logging.DEBUG if quiet or failing.failures % 10 > 2 else logging.WARNING
    if target.verb == "created":
        text = f"pod {target.name} cannot be created (the operator tries again): {error.message}"
        event = Event("PodRejected", text, warning=True, pod=target.name)
    else:
        event = Event("WriteFailed", f"{target.name} cannot be {target.verb}: {failing.why}", warning=True)
    fields = about(job.key, pod=event.pod, reason=event.reason)
    log.log(level, "%s cannot be %s: %s", target.name, target.verb, error, extra=fields)
    return [] if quiet else [event]
