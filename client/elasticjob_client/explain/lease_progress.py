"""A job with the progress that its leader writes into its Lease: the status has it up to a minute late.

Pure. A pod has written it, so it counts only if it is of the round that the status tells of, and possible.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from elasticjob.contract.fields import RecordError
from elasticjob.contract.reports import ProgressReport
from elasticjob_client.resource import ElasticJob

STALE_SECONDS = 5
"""What is older says its age."""


def leader_pod(job: ElasticJob) -> str:
    """The pod whose Lease may say more than the status; "" if no round trains that has reported a step."""
    seen = job.status
    if seen is None or not seen.progress or seen.terminal_state or seen.current_round.phase != "Active":
        return ""
    members, history = job.members, seen.round_history
    if not members or not history or history[0].number != seen.current_round.number:
        return ""
    return members[0].pod_name if history[0].first_step is not None else ""


def last_step_time(established: datetime | None, report: ProgressReport) -> datetime | None:
    """When the step of this report was made, in a round that began to train then; None if that is not known.
    The Lease's ``renewTime`` does not say it: the leader renews it also while training hangs."""
    if established is None:
        return None
    try:
        return established + timedelta(
            milliseconds=report.first_step_milliseconds + report.training_milliseconds
        )
    except OverflowError:
        return None


def with_report(job: ElasticJob, report: str) -> ElasticJob:
    """The job as of this report of its leader's Lease. The same job if that says nothing new of the current
    round."""
    try:
        found = ProgressReport.parse(report)
    except RecordError:
        return job
    seen = job.status
    assert seen
    assert seen.progress
    now, *before = seen.round_history
    waited = (now.rendezvous_milliseconds or 0) + found.first_step_milliseconds
    if (now.first_step, now.first_step_milliseconds) != (found.first_step, waited):
        return job  # it is of another round
    if found.step < (now.last_step or 0):
        return job
    steps = found.step - found.first_step
    progress = msgspec.structs.replace(
        seen.progress,
        step=found.step,
        last_report_time=last_step_time(seen.current_round.established_time, found),
        milliseconds_per_step=round(found.training_milliseconds / steps)
        if steps
        else seen.progress.milliseconds_per_step,
        goodput_percent=_goodput(job, found) or seen.progress.goodput_percent,
    )
    history = [msgspec.structs.replace(now, last_step=found.step), *before]
    status = msgspec.structs.replace(seen, progress=progress, round_history=history)
    return msgspec.structs.replace(job, status=status)


def _goodput(job: ElasticJob, found: ProgressReport) -> int | None:
    """The goodput as the operator counts it: the share of time not lost, until the step grew last."""
    assert job.status
    seen, progress = job.status, job.status.progress
    trained_until = last_step_time(seen.current_round.established_time, found)
    if progress is None or trained_until is None or seen.start_time is None:
        return None
    whole = (seen.active_seconds or 0) * 1000 + (trained_until - seen.start_time).total_seconds() * 1000
    lost = sum(one.milliseconds for one in progress.lost_by_cause)
    return round(100 * (1 - lost / whole)) if whole > lost else None


def age_seconds(job: ElasticJob, now: datetime) -> int | None:
    """How old the step is that the job shows; None if it has none, has ended, or is not to make any."""
    seen = job.status
    if seen is None or seen.terminal_state or seen.progress is None or job.state in ("Suspended", "Queued"):
        return None
    last = seen.progress.last_report_time
    return None if last is None else max(0, int((now - last).total_seconds()))
