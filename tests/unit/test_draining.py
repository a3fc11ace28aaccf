"""What a round that drains looks like in the status and in the round Lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob.contract.fields import RecordError
from elasticjob.contract.reports import DrainReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Participant
from elasticjob_operator.plan.state import status_json
from tests.scenarios.world import World


def draining() -> World:
    """A job whose round drains."""
    return World().play("train replicas=2 min=1", "drain", "job replicas=1 min=1")


def test_only_an_operator_that_knows_drains_may_act_on_one() -> None:
    w = draining()
    dumped = status_json.dump(w.status)
    assert dumped["currentRound"]["phase"] == "Draining"
    assert (dumped["internal"]["version"], dumped["internal"]["minReaderVersion"]) == (2, 2)
    assert status_json.parse(dumped) == w.status
    w.play("drain stopped=9")
    dumped = status_json.dump(w.status)
    assert (dumped["internal"]["version"], dumped["internal"]["minReaderVersion"]) == (1, 1)


def test_a_member_is_asked_and_trains_on() -> None:
    core = Participant("uid")
    core.observe(RoundRecord("uid", 0, "Broken"))
    core.announce("id-1", "1.1.1.1:1", False, 1)
    core.observe(RoundRecord("uid", 1, "Active", "n", ("id-1",), "1.1.1.1:1"))
    core.take_action()
    assert not core.drain_asked()
    core.observe(RoundRecord("uid", 1, "Draining", "n", ("id-1",), "1.1.1.1:1", "ScaledUp", "more"))
    assert core.drain_asked()
    assert not core.end_reason()
    core.observe(RoundRecord("uid", 1, "Active", "n", ("id-1",), "1.1.1.1:1"))
    assert core.drain_asked(), "a record that is older changes nothing"
    core.observe(RoundRecord("uid", 1, "Broken", "n", ("id-1",), "1.1.1.1:1", "ScaledUp", "more"))
    assert not core.drain_asked()
    assert core.end_reason() == "ScaledUp: more"


def test_a_member_knows_whether_others_are_being_replaced() -> None:
    round_ = RoundRecord("uid", 1, "Active", "n", ("id-1",), "1.1.1.1:1")
    core = Participant("uid")
    core.observe(RoundRecord("uid", 0, "Broken"))
    core.announce("id-1", "1.1.1.1:1", False, 1)
    core.observe(replace(round_, replacing=True))
    assert not core.replaces(), "it is no member yet"
    core.take_action()
    assert core.replaces()
    assert core.observe(round_), "taken back in the same phase"
    assert not core.replaces()
    core.observe(replace(round_, replacing=True))
    core.unpublish()
    assert not core.replaces(), "the job was deleted"
    assert not core.end_reason()
    assert core.observe(replace(round_, replacing=True)), "the Lease was deleted by hand, and is made again"
    assert core.replaces()
    core.observe(replace(round_, phase="Draining"))
    assert not core.replaces()
    core.observe(replace(round_, number=2, replacing=True))
    assert not core.replaces(), "another round"


def test_a_standby_beside_a_round_that_drains_announces_itself_again() -> None:
    core = Participant("uid")
    core.observe(RoundRecord("uid", 0, "Broken"))
    core.announce("id-2", "1.1.1.1:1", False, 1)
    core.observe(RoundRecord("uid", 1, "Draining", "n", ("id-1",), "1.1.1.1:1"))
    assert type(core.next_action()).__name__ == "AnnounceAgain"


def test_what_a_leader_says_of_another_round_starts_no_drain() -> None:
    w = World().play("train replicas=2 min=1")
    leader = w.status.current_round.leader_pod_name
    w.play("drain")
    w.leases[leader] = replace(w.leases[leader], drain=DrainReport("another round"))
    w.play("job replicas=1 min=1")
    assert w.status.current_round.phase == "Broken"
    end = w.status.current_round.end
    assert end is not None
    assert end.drain == "NotSupported"


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"version":1,"nonce":3}', '{"version":1,"nonce":"n","step":-1}'),
        '{"version":1,"nonce":"n","waitingRanks":"2-1"}',
    ],
)
def test_a_drain_report_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        DrainReport.parse(text)
    for good in (DrainReport("n", True, 7), DrainReport("n", step=7, waiting_ranks=(1, 2, 5))):
        assert DrainReport.parse(good.dump()) == good
