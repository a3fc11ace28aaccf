"""What ``elasticjob top`` shows, of all jobs or of one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from elasticjob_client.explain import listing
from elasticjob_client.explain.listing import JobRow
from elasticjob_client.explain.status import JobStatus, status
from elasticjob_client.explain.timeline import Slice, span, timeline
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob

LAST = timedelta(hours=1)
"""What the bar of a job in the list shows."""
_ORDER = (
    "WaitingForFencing",
    "Failed",
    "WaitingForPods",
    "FormingRound",
    "Draining",
    "Training",
    "Queued",
    "Suspended",
    "Complete",
)


class TopRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A line of the list: ``rounds`` is the last hour."""

    job: JobRow
    steps_per_second: float | None = None
    rounds: list[Slice] = []


class TopJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One job: ``rounds`` goes from ``begin`` to ``end``; both are absent before the first round."""

    status: JobStatus
    steps_per_second: float | None = None
    rounds: list[Slice] = []
    begin: datetime | None = None
    end: datetime | None = None


def rows(jobs: Sequence[ElasticJob], now: datetime, width: int) -> list[TopRow]:
    """The rows of all jobs: first those that may need help, then those that train, then those that ended."""
    found = [
        TopRow(
            job=listing.row(job, now),
            steps_per_second=steps_per_second(job),
            rounds=timeline(job, now - LAST, now, width),
        )
        for job in jobs
    ]
    return sorted(found, key=lambda row: (_place(row.job.state), row.job.namespace, row.job.name))


def _place(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else 0


def one(job: ElasticJob, pods: Sequence[Pod], now: datetime, width: int) -> TopJob:
    """The view of one job."""
    shown = span(job, now)
    return TopJob(
        status=status(job, pods, now),
        steps_per_second=steps_per_second(job),
        rounds=timeline(job, *shown, width) if shown else [],
        begin=shown[0] if shown else None,
        end=shown[1] if shown else None,
    )


def steps_per_second(job: ElasticJob) -> float | None:
    """The speed that was last reported; None unless the job trains and reports steps."""
    progress = job.status.progress if job.status else None
    if job.state not in ("Training", "Draining") or not progress or not progress.milliseconds_per_step:
        return None
    return 1000 / progress.milliseconds_per_step
