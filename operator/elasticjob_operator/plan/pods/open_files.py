"""Reports a leader whose limit of open files is too low for its round, or for the desired size.

Members that cannot connect to such a leader count as missing or lost, and nothing about that would say why.
"""

from __future__ import annotations

from elasticjob.contract.text import counted
from elasticjob.core.open_files import needed
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.pass_state import Pass


def shortage(p: Pass) -> str:
    """What people should know of the leader's limit; "" if it will do, or is not known."""
    leader = next(iter(p.status.members()), None)
    lease = p.lease_of(leader.pod_uid) if leader is not None else None
    if lease is None or lease.record is None or p.round.phase == "Closed":
        return ""
    record = lease.record
    agents = max(p.job.spec.replicas, p.round.members)
    workers = agents * (record.local_world_size or 1)
    files = needed(agents, workers)
    if not record.open_files or record.open_files >= files:
        return ""
    return (
        f"the leader {lease.pod} may open {record.open_files} files, but {counted(agents, 'member')} with "
        f"{counted(workers, 'worker')} need about {files}: raise the container's hard limit (LimitNOFILE of "
        "the container runtime, or ulimit -n)"
    )


def report(p: Pass) -> None:
    """Say it once in an Event, for as long as it is so."""
    text = shortage(p)
    if text and p.waits.begins(JobWait.OPEN_FILES_REPORTED):
        p.event("TooFewOpenFiles", text, warning=True)
