"""Python API of ElasticJob: submit, follow and change elastic training jobs from outside of the cluster.

    from elasticjob_client import Jobs

    with Jobs() as jobs:
        for job in jobs.watch("mnist"):
            print(job.state, job.status.current_round.number)

What a training script imports is the package ``elasticjob``, which has no dependency on this one.
"""

from typing import TYPE_CHECKING, Any

from elasticjob_client.errors import (
    ClientError,
    Forbidden,
    JobFailed,
    NoAccess,
    NoServer,
    NotFound,
    NotInstalled,
    Rejected,
)
from elasticjob_client.jobs import Event, Jobs
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob, Metadata, Spec, Status

if TYPE_CHECKING:
    from elasticjob_client.async_jobs import AsyncJobs

__all__ = [
    "AsyncJobs",
    "ClientError",
    "ElasticJob",
    "Event",
    "Forbidden",
    "JobFailed",
    "Jobs",
    "Metadata",
    "NoAccess",
    "NoServer",
    "NotFound",
    "NotInstalled",
    "Pod",
    "Rejected",
    "Spec",
    "Status",
]


def __getattr__(name: str) -> Any:
    """asyncio is imported by those who use it."""
    if name == "AsyncJobs":
        from elasticjob_client.async_jobs import AsyncJobs

        return AsyncJobs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
