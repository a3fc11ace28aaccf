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
from elasticjob.peers.sight import Sight

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


def sight(lease: str, report: RoundReport, pod: str = "pod-0", run: str = "run-1", **other: str) -> Sight:
    """What a participant of run-1 reads of one Lease, which the agent of ``pod`` has written."""
    annotations = {
        PEER_ANNOTATION: PeerRecord(run, 0, 1, 1, pod).dump(),
        names.PARTICIPANT_ANNOTATION: ParticipantRecord("id-1", "Joining", "10.0.0.1:1").dump(),
        names.REPORT_ANNOTATION: report.dump(),
        **{f"{names.GROUP}/{key}": text for key, text in other.items()},
    }
    body = {"metadata": {"name": lease, "annotations": annotations}, "spec": {"holderIdentity": "uid-0"}}
    return LeaseReader("run-1").peers({lease: Seen(body, 0.0)}, 0.0)


@pytest.mark.parametrize("run", ["run-1", "run-2"])
@pytest.mark.parametrize("participant", ['{"version":1', ParticipantRecord("id-1", "Joining", "h:1").dump()])
def test_a_lease_that_was_copied_is_that_of_no_pod(run: str, participant: str) -> None:
    """P7: it has the UID of the pod that it was copied from, and perhaps an endpoint where that was."""
    report = RoundReport("nonce", leader_lost=True)
    found = sight("a-copy", report, run=run, participant=participant)
    nothing = (found.peers, found.others, found.other_runs, found.said, found.reports, found.unreadable)
    assert not any(nothing)
    found = sight("pod-0", report, pod="", run=run)
    assert [*found.peers, *found.others] == ["pod-0"], "an earlier version does not write it"


def test_a_report_counts_beside_an_announcement_that_cannot_be_read() -> None:
    """P4: a user has written over it, and the round that its leader has established goes on."""
    report = RoundReport("nonce", established=True)
    found = sight("pod-0", report, participant='{"version":1')
    assert found.unreadable == {"pod-0"}
    assert found.reports == {"pod-0": report}


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
    report = RoundReport("nonce", leader_lost=True, message=said)
    peer = sight("pod-0", report, failure=FailureReport(3, 0, message=said).dump()).peers["pod-0"]
    assert peer.report is not None
    assert peer.failure is not None
    assert (peer.report.message, peer.failure.message) == (read, read)
    assert (peer.report.leader_lost, peer.failure.round_number) == (True, 3)
