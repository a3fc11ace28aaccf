"""The records: what one side writes the other reads, and nothing from a pod can do more than be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.fields import RecordError
from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import ParticipantRecord, endpoint_at
from elasticjob.contract.relay import MAX_RELAYED, CutOff, RelayReport
from elasticjob.contract.reports import (
    FailureReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import MemberList, RoundRecord

ACTIVE = RoundRecord("uid", 3, "Active", "n", ("a" * 11, "b" * 11), "10.0.0.1:4000", "PodLost", "lost")

# Test vectors: these texts stand in Leases of clusters; a change here is a change of the contract.
VECTORS: list[tuple[Callable[[str], object], str, object]] = [
    (
        RoundRecord.parse,
        '{"version":1,"jobUID":"u","round":7,"phase":"Active","nonce":"9f","size":2,"memberIDs":["id-0","id-1"],'
        '"leaderID":"id-0","leaderEndpoint":"10.0.3.7:41234","cause":"PodLost","message":"m","waitingMessage":"","outcome":"",'
        '"waitRenewPeriodSeconds":5,"limits":{"establishTimeoutSeconds":15,"heartbeatPeriodSeconds":1,"heartbeatTimeoutSeconds":10,"stallTimeoutSeconds":30,'
        '"hangTimeoutSeconds":0}}',
        RoundRecord("u", 7, "Active", "9f", ("id-0", "id-1"), "10.0.3.7:41234", "PodLost", "m"),
    ),
    (
        RoundRecord.parse,
        '{"version":1,"jobUID":"u","round":7,"phase":"Active","nonce":"9f","size":1,"memberIDs":["id-0"],'
        '"leaderID":"id-0","leaderEndpoint":"10.0.3.7:41234","cause":"","message":"","waitingMessage":"","outcome":"",'
        '"waitRenewPeriodSeconds":5,"limits":{"establishTimeoutSeconds":15,"heartbeatPeriodSeconds":1,"heartbeatTimeoutSeconds":10,"stallTimeoutSeconds":30,'
        '"hangTimeoutSeconds":0},"replacing":true}',
        RoundRecord("u", 7, "Active", "9f", ("id-0",), "10.0.3.7:41234", replacing=True),
    ),
    (
        RoundRecord.parse,
        '{"version":1,"jobUID":"u","round":0,"phase":"Broken","nonce":"","size":0,"memberIDs":[],'
        '"leaderID":"","leaderEndpoint":"","cause":"","message":"","waitingMessage":"","outcome":"",'
        '"waitRenewPeriodSeconds":5,"limits":{"establishTimeoutSeconds":15,"heartbeatPeriodSeconds":1,"heartbeatTimeoutSeconds":10,"stallTimeoutSeconds":30,'
        '"hangTimeoutSeconds":0},"outOfMemory":true}',
        RoundRecord("u", 0, "Broken", out_of_memory=True),
    ),
    (
        RoundRecord.parse,
        '{"version":1,"jobUID":"u","round":7,"phase":"Draining","nonce":"9f","size":1,"memberIDs":["id-0"],'
        '"leaderID":"id-0","leaderEndpoint":"10.0.3.7:41234","cause":"ScaledUp","message":"","waitingMessage":"",'
        '"outcome":"","waitRenewPeriodSeconds":5,"limits":{"establishTimeoutSeconds":15,"heartbeatPeriodSeconds":1,'
        '"heartbeatTimeoutSeconds":10,"stallTimeoutSeconds":30,"hangTimeoutSeconds":0},"memoryAlone":true}',
        RoundRecord("u", 7, "Draining", "9f", ("id-0",), "10.0.3.7:41234", "ScaledUp", memory_alone=True),
    ),
    (
        ParticipantRecord.parse,
        '{"version":1,"id":"k3x9q2aaaaa","state":"Joining","endpoint":"10.0.3.7:41234","endpointFixed":false,'
        '"fromJobUID":"u","fromRound":6,"localWorldSize":8,"seenJobUID":"u","seenRound":7,"openFiles":1024,"oomKills":2}',
        ParticipantRecord("k3x9q2aaaaa", "Joining", "10.0.3.7:41234", False, "u", 6, 8, "u", 7, 1024, 2),
    ),
    (
        FailureReport.parse,
        '{"version":1,"round":6,"groupRank":2,"exitCode":-9,"localRank":1,"offsetMilliseconds":812,"afterRoundEnd":false,'
        '"message":"killed"}',
        FailureReport(6, 2, "killed", -9, 1, 812),
    ),
    (
        RoundReport.parse,
        '{"version":1,"nonce":"9f","established":true,"unarrivedRanks":"","silentRanks":"1-3,7","leaderLost":false,'
        '"connectionRefused":false,"hung":false,"silentMilliseconds":3012,"message":"no beat"}',
        RoundReport("9f", True, silent_ranks=(1, 2, 3, 7), silent_milliseconds=3012, message="no beat"),
    ),
    (
        ProgressReport.parse,
        '{"version":1,"nonce":"9f","firstStep":100,"step":250,"firstStepMilliseconds":2100,'
        '"trainingMilliseconds":64000}',
        ProgressReport("9f", 100, 250, 2100, 64000),
    ),
    (
        StartsReport.parse,
        '{"version":1,"nonce":"9f","warm":7,"cold":1,"coldReason":"no warm interpreter was ready"}',
        StartsReport("9f", 7, 1, "no warm interpreter was ready"),
    ),
    (
        ResumedReport.parse,
        '{"version":1,"nonce":"9f","step":18199,"from":"Memory","milliseconds":640}',
        ResumedReport("9f", 18199, "Memory", 640),
    ),
    (
        RelayReport.parse,
        '{"version":1,"nonce":"9f","cutOff":[{"groupRank":1,"why":"Unauthorized","left":true,'
        '"failure":"{\\"version\\":1,\\"round\\":6,\\"groupRank\\":1,\\"exitCode\\":-9,\\"localRank\\":0,'
        '\\"offsetMilliseconds\\":812,\\"afterRoundEnd\\":false,\\"message\\":\\"killed\\"}"},'
        '{"groupRank":2,"why":"no answer","left":false}]}',
        RelayReport(
            "9f",
            (
                CutOff(1, "Unauthorized", True, FailureReport(6, 1, "killed", -9, 0, 812)),
                CutOff(2, "no answer"),
            ),
        ),
    ),
    (
        MemberList.parse,
        '{"version":1,"jobUID":"u","round":7,"nonce":"9f","memberIDs":["id-0","id-1"]}',
        MemberList("u", 7, "9f", ("id-0", "id-1")),
    ),
    (
        RoundRecord.parse,
        '{"version":1,"jobUID":"u","round":7,"phase":"Active","nonce":"9f","size":5000,"memberIDs":[],'
        '"leaderID":"id-0","leaderEndpoint":"10.0.3.7:41234","cause":"","message":"","waitingMessage":"","outcome":"",'
        '"waitRenewPeriodSeconds":5,"limits":{"establishTimeoutSeconds":15,"heartbeatPeriodSeconds":1,"heartbeatTimeoutSeconds":10,"stallTimeoutSeconds":30,'
        '"hangTimeoutSeconds":0}}',
        RoundRecord("u", 7, "Active", "9f", leader_endpoint="10.0.3.7:41234", size=5000, leader_id="id-0"),
    ),
]


@pytest.mark.parametrize(("parse", "text", "record"), VECTORS, ids=lambda v: getattr(v, "__qualname__", ""))
def test_vectors(parse: Callable[[str], object], text: str, record: object) -> None:
    assert parse(text) == record
    assert record.dump() == text  # type: ignore[attr-defined]


def test_old_handlers_meet_new_operators() -> None:
    fields = {**json.loads(ACTIVE.dump()), "version": 9, "phase": "Paused", "new": {"x": 1}}
    record = RoundRecord.parse(json.dumps(fields))
    assert record.phase == "Paused"
    assert record.order == (3, 0)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"round": -1}, "round is -1"),
        ({"round": True}, "round is true"),
        ({"memberIDs": ["x", "x"]}, "appears twice"),
        ({"memberIDs": [1]}, "memberIDs is [1]"),
        ({"memberIDs": [], "size": 0}, "needs size"),
        ({"size": 3}, "do not match memberIDs"),
        ({"leaderID": "x"}, "do not match memberIDs"),
        ({"jobUID": ""}, 'jobUID is ""'),
        ({"waitRenewPeriodSeconds": 0}, "waitRenewPeriodSeconds is 0"),
        ({"limits": [1]}, "limits is [1], expected an object"),
        ({"limits": {"stallTimeoutSeconds": 0}}, "round record: limits: stallTimeoutSeconds is 0"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], found: str) -> None:
    with pytest.raises(RecordError) as error:
        RoundRecord.parse(json.dumps({**json.loads(ACTIVE.dump()), **change}))
    assert found in str(error.value)


@pytest.mark.parametrize(
    ("cut_off", "found"),
    [
        ("x", 'cutOff is "x"'),
        ([1], "cutOff is [1]"),
        ([{"groupRank": -1}], "groupRank is -1"),
        ([{"groupRank": 1, "failure": "{"}], "failure report: not JSON"),
        ([{"groupRank": 1, "left": 1}], "left is 1"),
    ],
)
def test_a_wrong_word_of_another_is_named(cut_off: object, found: str) -> None:
    with pytest.raises(RecordError) as error:
        RelayReport.parse(json.dumps({"version": 1, "nonce": "n", "cutOff": cut_off}))
    assert found in str(error.value)


@pytest.mark.parametrize("text", ["\U0001f525" * 5_000, '"' * 5_000, "\\" * 5_000, "\x00" * 5_000])
def test_what_is_passed_on_for_others_is_never_too_long_to_be_read(text: str) -> None:
    """Whatever they say; those that have left the round come first."""
    failure = FailureReport(7, 1, text, 1, 0, 1)
    cut_off = [CutOff(rank, text, rank >= 30, failure) for rank in range(50)]
    assert all(CutOff.parse(one.dump()).left == one.left for one in cut_off)
    report = RelayReport.of("n", cut_off)
    assert len(report.cut_off) == MAX_RELAYED
    assert all(one.left for one in RelayReport.parse(report.dump()).cut_off)


def test_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(RecordError, match="longer than"):
        ParticipantRecord.parse("[" * 5000)


@given(st.sampled_from(["10.0.0.1", "node-a", "fd00::1"]), st.integers(1, 65535))
def test_endpoints_round_trip(host: str, port: int) -> None:
    assert parse_endpoint(format_endpoint(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:٣", "a" * 300 + ":1"]
)
def test_wrong_endpoints_are_refused(text: str) -> None:
    with pytest.raises(RecordError):
        parse_endpoint(text)


def test_the_pods_address_wins_unless_the_user_chose_one() -> None:
    record = ParticipantRecord("id-0", "Joining", "127.0.0.1:4000")
    assert endpoint_at(record, "10.0.0.5") == "10.0.0.5:4000"
    assert endpoint_at(replace(record, endpoint_fixed=True), "10.0.0.5") == "127.0.0.1:4000"


def test_limits_go_whole_through_the_record() -> None:
    chosen = Limits(1, 2, 3, 4, 5, 16, 7, 8)
    record = RoundRecord("uid", 0, "Broken", limits=chosen)
    assert RoundRecord.parse(record.dump()).limits == chosen
    assert RoundRecord.parse('{"version":1,"jobUID":"uid","round":0,"phase":"Broken"}').limits == Limits()
