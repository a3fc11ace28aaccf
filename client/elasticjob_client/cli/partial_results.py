"""What a command shows where it cannot see all: the rest, and the name of what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob_client.cli.options import note
from elasticjob_client.errors import ClientError, NoServer

if TYPE_CHECKING:
    from elasticjob_client import Jobs
    from elasticjob_client.pods import Pod
    from elasticjob_client.resource import ElasticJob


def reason(error: ClientError) -> str:
    """Why something is missing. Raises the error if nothing can be known: the API server does not answer."""
    if isinstance(error, NoServer) and not error.answers:
        raise error
    return str(error)


REFRESHED = 20
"""How many jobs of a list have the progress of this moment; that of others says its age."""
_AT_ONCE = 8


def refreshed(jobs: Jobs, found: list[ElasticJob]) -> list[ElasticJob]:
    """These jobs, with the progress of this moment as far as it can be had."""
    from concurrent.futures import ThreadPoolExecutor

    from elasticjob_client.explain import lease_progress

    asked = [job for job in found if lease_progress.leader_pod(job)][:REFRESHED]
    if not asked:
        return found
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        known = {(job.namespace, job.name): job for job in pool.map(jobs.refreshed, asked)}
    return [known.get((job.namespace, job.name), job) for job in found]


def no_log(pod: Pod, error: ClientError) -> str:
    """Say on stderr that a pod's log is missing; returns that."""
    text = f"the log of {pod.name}: {reason(error)}"
    note(f"not shown: {text}")
    return text


def pods(jobs: Jobs, name: str, quiet: bool = False) -> list[Pod] | None:
    """The job's pods; None, and unless ``quiet`` a note, if they cannot be seen."""
    try:
        return jobs.pods(name)
    except ClientError as error:
        text = reason(error)
        if not quiet:
            note(f"not shown: the pods of {name}: {text}")
        return None
