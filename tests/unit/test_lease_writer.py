"""The thread that renews a pod's Lease."""

from __future__ import annotations

from elasticjob.lease_writer import LeaseWriter
from tests.unit.memory_api import Leases, MemoryApi


def test_who_is_told_to_renew_more_often_does_not_finish_the_longer_interval() -> None:
    """The operator may have been made anew meanwhile, and then knows of the shorter one alone."""
    leases = Leases()
    writer = LeaseWriter(MemoryApi(leases), "job-0-0", "uid", {})
    writer.renew_every(160.0)
    writer.say(participant="{}")
    try:
        leases.wait_for(lambda: leases.writes == 1, "what was said is written")
        writer.renew_every(0.1)
        leases.wait_for(lambda: leases.writes >= 3, "renewals by the shorter interval")
    finally:
        writer.stop()
