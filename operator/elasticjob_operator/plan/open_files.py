"""A leader whose limit of open files will not do for the round that it leads, or for the size that is wanted.

The members that find no place at such a leader are missing, or lost: nothing in that says why.
"""

from __future__ import annotations

from elasticjob.contract.text import counted
from elasticjob.core.open_files import needed
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.waits import JobWait


def shortage(p: Pass) -> str:
    """What people should know of the leader's limit; "" if it will do, or is not known."""
    leader = next(iter(p.status.members()), None)
    lease = p.lease_of(leader.pod_uid) if leader is not None else None
    if lease is None or lease.record is None or p.round.phase == "Closed":
        return ""
    record = lease.record
    agents = max(p.job.spec.replicas, p.round.members)
    workers = agents * (int(record.nproc) if record.nproc.isdecimal() else 1)
    files = needed(agents, workers)
    if not record.open_files or record.open_files >= files:
        return ""
    return (
        f"the leader {lease.pod} may open {record.open_files} files, but {counted(agents, 'member')} with "
        f"{counted(workers, 'worker')} need about {files}: raise the container's hard limit (LimitNOFILE of "
        "the container runtime, or ulimit -n)"
    )


def tell(p: Pass) -> None:
    """Say it once in an Event, for as long as it is so."""
    text = shortage(p)
    if text and p.waits.begins(JobWait.OPEN_FILES_TOLD):
        p.event("TooFewOpenFiles", text, warning=True)
