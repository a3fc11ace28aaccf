"""The thread that renews a pod's Lease."""

from __future__ import annotations

from elasticjob.contract.names import PARTICIPANT_ANNOTATION
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


def test_a_lease_that_somebody_has_stripped_is_written_anew() -> None:
    """By kubectl edit, or a tool that removes what it does not know: no other process has taken over."""
    leases = Leases()
    writer = LeaseWriter(MemoryApi(leases), "job-0-0", "uid", {})
    writer.renew_every(0.1)
    writer.say(participant="{}")
    try:
        leases.wait_for(lambda: leases.writes >= 1, "what was said is written")
        leases.put("job-0-0", dict.fromkeys(leases.leases["job-0-0"].annotations), "somebody")
        leases.wait_for(
            lambda: leases.annotation("job-0-0", PARTICIPANT_ANNOTATION) == "{}", "it stands again"
        )
        assert leases.leases["job-0-0"].holder == "uid"
        assert not writer.superseded
    finally:
        writer.stop()
