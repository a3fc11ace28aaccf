"""A member that can read and not write: it tells the others by the round's store, and one passes it on."""

# shows: one member cannot write: its token or its rights are refused, or its path to the API ...

from __future__ import annotations

import pytest
from torch.distributed import PrefixStore

from elasticjob.api.errors import Forbidden, Unauthorized, Unavailable
from elasticjob.contract.names import RELAY_ANNOTATION
from elasticjob.contract.relay import CutOff, RelayReport
from elasticjob.core.write_trouble import WriteTrouble
from elasticjob.store.connect import connect
from elasticjob.watch.relay import COUNT_KEY, MESSAGE_KEY
from tests.unit.handler.joining import Joining, Start, form, two
from tests.unit.memory_api import Leases


@pytest.fixture(autouse=True)
def _told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob.core.write_trouble.CANNOT_WRITE_SECONDS", 0.0)


def relayed(leases: Leases, pod: str) -> dict[int, CutOff]:
    """What this pod's Lease says of others, by rank."""
    text = leases.annotation(pod, RELAY_ANNOTATION)
    return {} if text is None else {one.group_rank: one for one in RelayReport.parse(text).cut_off}


def test_a_member_that_cannot_write_says_so_and_the_end_of_its_worker_to_the_leader(
    leases: Leases, start: Start
) -> None:
    handlers, _, record = two(leases, start)
    leases.refused["b"] = Unauthorized("Unauthorized", 401)
    handlers[1]._parts.lease.write()
    leases.wait_for(lambda: relayed(leases, "a") == {1: CutOff(1, "Unauthorized")}, "it cannot write")
    text = leases.annotation("a", RELAY_ANNOTATION)
    assert text is not None
    assert RelayReport.parse(text).nonce == record.nonce

    joining = Joining(handlers[1])
    leases.wait_for(lambda: relayed(leases, "a")[1].left, "its worker has failed")
    failure = relayed(leases, "a")[1].failure
    assert failure is not None
    assert (failure.round_number, failure.group_rank) == (1, 1)
    assert leases.failure("b") is None, "it could not report it"

    del leases.refused["b"]
    leases.announced("b", but=record.member_ids[1])
    assert leases.failure("b") == failure, "what could not be written is written"
    leases.wait_for(lambda: not relayed(leases, "a"), "it can write again")
    assert joining.waits()


def test_a_leader_that_has_left_the_round_still_hears_of_it(leases: Leases, start: Start) -> None:
    """Its workers fail with those of the member, in the same collective, before that can say anything."""
    handlers, _, record = two(leases, start)
    leases.refused["b"] = Unavailable("no answer")
    joining = [Joining(handlers[0]), Joining(handlers[1])]
    leases.announced("a", but=record.member_ids[0])
    leases.wait_for(lambda: 1 in relayed(leases, "a") and relayed(leases, "a")[1].failure, "its failure")
    del leases.refused["b"]
    leases.announced("b", but=record.member_ids[1])
    form(leases, 2, "a", "b")
    assert [one.result().rank for one in joining] == [0, 1]
    handlers[0]._parts.lease.write()
    leases.wait_for(lambda: leases.annotation("a", RELAY_ANNOTATION) is None, "that was the round before")


def test_for_a_leader_that_cannot_write_another_member_speaks(leases: Leases, start: Start) -> None:
    handlers, _, _ = two(leases, start)
    leases.refused["a"] = Forbidden("leases is forbidden", 403)
    handlers[0]._parts.lease.write()
    leases.wait_for(lambda: relayed(leases, "b") == {0: CutOff(0, "leases is forbidden")}, "it cannot write")
    Joining(handlers[0])
    leases.wait_for(lambda: relayed(leases, "b")[0].left, "it has left the round")
    del leases.refused["a"]
    leases.wait_for(lambda: not relayed(leases, "b"), "it can write again")


def test_words_that_make_no_sense_are_passed_over(leases: Leases, start: Start) -> None:
    """Whoever reaches the port may write into the store."""
    handlers, _, record = two(leases, start)
    membership = handlers[1]._core.membership
    assert membership is not None
    store = PrefixStore(membership.prefix, connect(record.leader_endpoint))
    for word in ("", "{", '{"groupRank":7,"why":"x"}', "x" * 100_000, CutOff(0, "leader").dump()):
        store.set(f"{MESSAGE_KEY}{store.add(COUNT_KEY, 1)}", word)
    leases.refused["b"] = Unauthorized("Unauthorized", 401)
    handlers[1]._parts.lease.write()
    leases.wait_for(lambda: relayed(leases, "a") == {1: CutOff(1, "Unauthorized")}, "it cannot write")


def test_a_message_that_was_counted_and_has_not_come_holds_back_no_other(
    leases: Leases, start: Start
) -> None:
    """The connection of its writer broke in between. Of one member the newest counts, whenever they come."""
    handlers, _, record = two(leases, start)
    membership = handlers[1]._core.membership
    assert membership is not None
    store = PrefixStore(membership.prefix, connect(record.leader_endpoint))
    late = store.add(COUNT_KEY, 1)
    leases.refused["b"] = Unauthorized("Unauthorized", 401)
    handlers[1]._parts.lease.write()
    leases.wait_for(lambda: relayed(leases, "a") == {1: CutOff(1, "Unauthorized")}, "it cannot write")
    store.set(f"{MESSAGE_KEY}{late}", CutOff(1, "").dump())
    last = store.add(COUNT_KEY, 1)
    store.set(f"{MESSAGE_KEY}{last}", CutOff(1, "Unauthorized", left=True).dump())
    leases.wait_for(lambda: relayed(leases, "a")[1].left, "the newest")


def test_short_trouble_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticjob.core.write_trouble.CANNOT_WRITE_SECONDS", 3.0)
    trouble = WriteTrouble()
    assert not trouble.failed(10.0, 10.1)
    assert not trouble.failed(12.0, 12.9)
    assert not trouble.over(), "nothing was told"
    assert not trouble.failed(20.0, 22.9), "it begins again"
    assert trouble.failed(23.0, 23.1)
    assert trouble.over()
    assert not trouble.failed(30.0, 30.1)


def test_one_request_that_hangs_is_trouble_enough() -> None:
    assert WriteTrouble().failed(10.0, 15.0)
