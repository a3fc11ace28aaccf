"""The thread that renews a pod's Lease."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from elasticjob.api.leases import Lease
from elasticjob.contract.names import PARTICIPANT_ANNOTATION
from elasticjob.leases.writer import LeaseWriter
from tests.unit.memory_api import Leases, MemoryApi


@contextlib.contextmanager
def renewing(leases: Leases, seconds: float) -> Iterator[LeaseWriter]:
    """A writer that renews so often, and has written what was said."""
    writer = LeaseWriter(MemoryApi(leases), "job-0-0", "uid", {})
    writer.renew_every(seconds)
    writer.write(participant="{}")
    try:
        leases.wait_for(lambda: leases.writes >= 1, "what was said is written")
        yield writer
    finally:
        writer.stop()


def test_who_is_told_to_renew_more_often_does_not_finish_the_longer_interval() -> None:
    """The operator may have been made anew meanwhile, and then knows of the shorter one alone."""
    leases = Leases()
    with renewing(leases, 160.0) as writer:
        writer.renew_every(0.1)
        leases.wait_for(lambda: leases.writes >= 3, "renewals by the shorter interval")


def test_who_may_renew_less_often_does_not_finish_the_shorter_interval() -> None:
    """It has found its place in a round: of thousands each would write once for nothing."""
    leases = Leases()
    with renewing(leases, 0.5) as writer:
        writer.renew_every(60.0)
        time.sleep(1.5)
        assert leases.writes == 1
        writer.renew_every(0.1)
        leases.wait_for(lambda: leases.writes >= 2, "a renewal by the shorter interval")


def test_no_change_to_and_fro_of_the_interval_puts_a_renewal_off() -> None:
    leases = Leases()
    with renewing(leases, 1.0) as writer:
        until = time.monotonic() + 30.0
        while leases.writes == 1 and time.monotonic() < until:
            for seconds in (2.0, 1.0):
                writer.renew_every(seconds)
                time.sleep(0.1)
        assert leases.writes >= 2


# shows: a pod's Lease is changed or stripped
def test_a_lease_that_somebody_has_stripped_is_written_anew() -> None:
    """By kubectl edit, or a tool that removes what it does not know: no other process has taken over."""
    leases = Leases()
    with renewing(leases, 0.1) as writer:
        leases.put("job-0-0", dict.fromkeys(leases.leases["job-0-0"].annotations), "somebody")
        leases.wait_for(
            lambda: leases.annotation("job-0-0", PARTICIPANT_ANNOTATION) == "{}", "it stands again"
        )
        assert leases.leases["job-0-0"].holder == "uid"
        assert not writer.superseded


def test_each_write_has_the_labels() -> None:
    """One that was taken off by hand stands again: those that list Leases by it would not see this one."""
    labels = {"elasticjob.dev/run-name": "mnist"}
    written: list[Mapping[str, Any]] = []

    class Api(MemoryApi):
        def _write(self, name: str, body: Mapping[str, Any]) -> Lease:
            written.append(body["metadata"])
            return super()._write(name, body)

    leases = Leases()
    writer = LeaseWriter(Api(leases), "job-0-0", "uid", labels)
    writer.renew_every(0.1)
    writer.write(participant="{}")
    try:
        leases.wait_for(lambda: leases.writes >= 3, "two renewals")
    finally:
        writer.stop()
    assert "resourceVersion" in written[2], "a PATCH"
    assert [one["labels"] for one in written[:3]] == [labels] * 3
