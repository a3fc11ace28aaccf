"""The end of the log of a pod that has failed, for ``why`` and ``run``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from elasticjob_client import Jobs
    from elasticjob_client.pods import Pod
    from elasticjob_client.resource import ElasticJob, Failure

LINES = 20
"""Lines of the failed pod's log that are shown."""
_BEFORE = timedelta(seconds=60)
_AFTER = timedelta(seconds=1)
"""What belongs to a failure, before and after its time."""


def end_of_log(jobs: Jobs, pod: Pod, failure: Failure | None, count: int) -> list[str]:
    """The last lines that a pod has said of its failure: before torchrun's own ending, or, where the pod has
    gone on to the next round, before the time of the failure."""
    from elasticjob_client.explain import log_end

    read = max(count, log_end.READ_LINES)
    found = _until(jobs, pod, failure, read) if pod.ended is None and failure and failure.time else []
    return log_end.without_torchruns(found or jobs.tail(pod, read))[-count:]


def _until(jobs: Jobs, pod: Pod, failure: Failure, count: int) -> list[str]:
    """The lines until the failure, by the kubelet's times; empty if it gives no times."""
    from elasticjob_client.explain.lines import Window

    assert failure.time
    return jobs.tail(pod, count, Window(failure.time - _BEFORE, failure.time + _AFTER))


def of_failure(jobs: Jobs, job: ElasticJob) -> tuple[str, list[str]]:
    """The pod whose failure ended the job, and the end of its log; nothing, and a note, if it cannot be
    read."""
    from elasticjob_client.cli import partial_results
    from elasticjob_client.explain import why

    failure = job.status.last_failure if job.status else None
    pod = why.pod_to_read(failure, partial_results.pods(jobs, job.name) or ())
    try:
        return (pod.name, end_of_log(jobs, pod, failure, LINES)) if pod else ("", [])
    except ClientError as error:
        assert pod
        partial_results.no_log(pod, error)
        return "", []
