"""Python API of ElasticJob: submit, follow and change elastic training jobs from outside of the cluster.

    from elasticjob_client import Jobs

    with Jobs() as jobs:
        for job in jobs.watch("mnist"):
            print(job.state, job.status.current_round.number)

What a training script imports is the package ``elasticjob``, which has no dependency on this one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of ``typing``, during whose import a Ctrl-C would not be quiet yet
if TYPE_CHECKING:
    from typing import Any

    from elasticjob_client._async.jobs import AsyncJobs
    from elasticjob_client._sync.jobs import Jobs
    from elasticjob_client.errors import (
        ClientError,
        Forbidden,
        JobFailed,
        NoAccess,
        NoServer,
        NotFound,
        NotInstalled,
        Rejected,
        Unreadable,
    )
    from elasticjob_client.events import Event
    from elasticjob_client.pods import Pod
    from elasticjob_client.resource import ElasticJob, Metadata, Spec, Status

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
    "Unreadable",
]


_HOMES = {
    "AsyncJobs": "_async.jobs",
    "ElasticJob": "resource",
    "Event": "events",
    "Jobs": "_sync.jobs",
    "Metadata": "resource",
    "Pod": "pods",
    "Spec": "resource",
    "Status": "resource",
}
"""The modules of those names that are not errors."""


def __getattr__(name: str) -> Any:
    """A name is imported when it is used: the help of a command needs no HTTP client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
