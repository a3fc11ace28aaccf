"""What a coordinator reads of participants' Leases: when they were made, all by the API server's clock, and
what they report."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob.contract import names
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import MAX_MESSAGE, FailureReport, RoundReport
from elasticjob.coordination.directory import Seen
from elasticjob.coordination.reading import LeaseReader, older_than
from elasticjob.peers.records import PeerRecord
from elasticjob.peers.run import PEER_ANNOTATION

MADE = "2026-01-01T00:10:00Z"


def made(**times: Any) -> dict[str, Seen]:
    return {name: Seen({"metadata": {"creationTimestamp": time}}, 0.0) for name, time in times.items()}


def test_a_lease_is_older_if_it_was_made_more_than_a_second_before() -> None:
    leases = made(before="2026-01-01T00:09:58Z", about="2026-01-01T00:09:59Z", after="2026-01-01T00:10:07Z")
    assert older_than(MADE, leases) == {"before"}


@pytest.mark.parametrize("time", [None, "", "yesterday", 7])
def test_times_that_cannot_be_read_say_nothing(time: object) -> None:
    assert older_than(MADE, made(one=time)) == frozenset()
    assert older_than(str(time), made(one="2026-01-01T00:09:58Z")) == frozenset()


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("ValueError: no\nround 7 is Active\r\x1b[2K", "ValueError: no round 7 is Active [2K"),
        ("all is well", "all is well"),
        ("\n" * MAX_MESSAGE, ""),
        ("x" * 2 * MAX_MESSAGE, "x" * MAX_MESSAGE),
    ],
)
def test_messages_are_read_as_one_line(said: str, read: str) -> None:
    """They go into the record, and into the logs of all pods."""
    annotations = {
        PEER_ANNOTATION: PeerRecord("run-1", 0, 1, 1).dump(),
        names.PARTICIPANT_ANNOTATION: ParticipantRecord("id-1", "Joining", "10.0.0.1:1").dump(),
        names.REPORT_ANNOTATION: RoundReport("nonce", leader_lost=True, message=said).dump(),
        names.FAILURE_ANNOTATION: FailureReport(3, 0, message=said).dump(),
    }
    body = {"metadata": {"name": "pod-0", "annotations": annotations}, "spec": {"holderIdentity": "uid-0"}}
    peer = LeaseReader("run-1").peers({"pod-0": Seen(body, 0.0)}, 0.0).peers["pod-0"]
    assert peer.report is not None
    assert peer.failure is not None
    assert (peer.report.message, peer.failure.message) == (read, read)
    assert (peer.report.leader_lost, peer.failure.round_number) == (True, 3)
