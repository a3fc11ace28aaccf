"""The limit of open files, which the leader's agent can exceed in a large job.

The leader needs two files for each agent (calls and heartbeats) and one for each worker, in the stores that
it serves. The usual soft limit of 1,024 is reached at about 100 pods with 8 workers each. So the agent raises
its soft limit to the hard one. Workers get the former limit back as soon as they have started, because a
program that uses ``select`` cannot handle file descriptors above 1,023. A program that needs more can raise
the limit itself.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterable

from elasticjob.contract.fields import MAX_INT32
from elasticjob.contract.text import counted
from elasticjob.core.open_files import needed

logger = logging.getLogger(__name__)

MOST = 2**20
"""Enough for any job. Many runtimes have 2**30, and some programs close all files that there may be."""
_former: int | None = None


def raise_limit() -> None:
    """Let this process open as many files as it may."""
    global _former
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.debug("cannot raise the limit of open files above %d: %s", soft, error)
        return
    _former = soft if _former is None else _former


def restore_limit(pids: Iterable[int]) -> None:
    """Set the limit of workers that have just started to what it was before (Linux)."""
    if _former is None or not hasattr(resource, "prlimit"):
        return
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            if soft != resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
                continue  # it has chosen another
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_former, hard))


def limit() -> int:
    """How many files this process may open, as its participant record says."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_INT32 if soft == resource.RLIM_INFINITY else min(soft, MAX_INT32)


def shortfall(agents: int, workers: int) -> str:
    """Why the limit is too low for the leader of this many agents and workers; "" if it is not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = needed(agents, workers)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return ""
    return (
        f"this agent leads {counted(agents, 'agent')} with {counted(workers, 'worker')} and needs about "
        f"{files} open files, but its limit is {soft} (hard: {hard}): raise it for the container "
        "(LimitNOFILE of the container runtime, or ulimit -n)"
    )
