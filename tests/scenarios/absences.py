"""Rules of the planner, absent: what scenarios and simulation put in their place to see that they tell."""

from __future__ import annotations

from typing import Any

from elasticjob.contract.records import Outcome
from elasticjob_operator.plan import lifecycle, members
from elasticjob_operator.plan.causes import Evidence

_examine = members._examine


def convict_by_silence(p: Any, member: Any) -> tuple[str, Evidence | None]:
    """A Lease that is not renewed is enough."""
    lease = p.observed.leases.get(member.pod_name)
    if lease is not None and lease.silent > 10:
        return "Lost", Evidence("Unreachable", "silent", member.pod_name)
    return _examine(p, member)


def ignore_what_ended(p: Any, member: Any) -> tuple[str, Evidence | None]:
    """Pods that are lost are overlooked."""
    state, evidence = _examine(p, member)
    return (member.state, None) if evidence is not None and evidence.cause == "PodLost" else (state, evidence)


def complete_with_the_first(p: Any) -> bool:
    """One member that has succeeded completes the job."""
    if p.round.phase == "Active" and any(m.succeeded for m in p.status.members()):
        lifecycle._close(p, Outcome.COMPLETE, "Succeeded", "one has succeeded")
        return True
    return False
