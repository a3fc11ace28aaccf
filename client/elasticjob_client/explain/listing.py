"""What ``elasticjob list`` says: a line for each job."""

from __future__ import annotations

from datetime import datetime

import msgspec

from elasticjob_client.explain.lease_progress import age_seconds
from elasticjob_client.explain.status import NO_STATUS
from elasticjob_client.resource import ElasticJob


class JobRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The columns of ``kubectl get ej -o wide`` that tell jobs apart. ``members``: of the round that runs."""

    namespace: str
    name: str
    state: str
    members: int = 0
    replicas: int | None = None
    round: int = 0
    restarts: int = 0
    step: int | None = None
    step_age_seconds: int | None = None
    goodput_percent: int | None = None
    age_seconds: int | None = None


def row(job: ElasticJob, now: datetime) -> JobRow:
    """The row of one job."""
    seen, created = job.status, job.metadata.creation_timestamp
    runs = seen is not None and seen.current_round.phase in ("Active", "Draining")
    progress = seen.progress if seen else None
    return JobRow(
        namespace=job.namespace,
        name=job.name,
        state=job.state or NO_STATUS,
        members=seen.current_round.members if seen and runs else 0,
        replicas=job.spec.replicas,
        round=seen.current_round.number if seen else 0,
        restarts=seen.restarts if seen else 0,
        step=progress.step if progress else None,
        step_age_seconds=age_seconds(job, now),
        goodput_percent=progress.goodput_percent if progress else None,
        age_seconds=int((now - created).total_seconds()) if created else None,
    )
