"""Agents that have said that they end: their Leases do not hold the name of a run, and they are not waited
for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticjob.contract import names
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.coordination.directory import Seen
from elasticjob.coordination.reading import LeaseReader
from elasticjob.peers.records import PeerRecord
from elasticjob.peers.run import PEER_ANNOTATION
from elasticjob.peers.settled import Settled, made_again
from elasticjob.peers.sight import Sight
from tests.unit.peers.table import RUN, Table
from tests.unit.peers.test_plan import lost_and_replaced
from tests.unit.peers.test_seat import NEXT, NEXT_POD, lease, seat_of, trained, write_of


def sight_of(settled: Settled, *states: str) -> Sight:
    """What the next run sees of participants of this one in these states, of whom the first are its members.
    It may not watch pods."""
    members = [(m.name, m.key, m.id) for m in settled.state.members]
    members += [(f"late-{n}", f"uid-late-{n}", f"id-late-{n}") for n in range(3)]
    leases = {}
    for (name, uid, announced), state in zip(members, states, strict=False):
        record = ParticipantRecord(announced, state, "10.0.0.5:1234", seen_job_uid=settled.run)
        annotations = {
            PEER_ANNOTATION: PeerRecord(settled.run).dump(),
            names.PARTICIPANT_ANNOTATION: record.dump(),
        }
        metadata: dict[str, Any] = {"name": name, "resourceVersion": "5", "annotations": annotations}
        leases[name] = Seen({"metadata": metadata, "spec": {"holderIdentity": uid}}, 0.0)
    return replace(LeaseReader(NEXT.id).peers(leases, 9999.0), round_lease=lease(settled, 10, None))


@pytest.mark.parametrize("settled", [Table().settled, trained()], ids=["no round", "a round"])
def test_leases_of_agents_that_have_ended_do_not_hold_the_name(settled: Settled) -> None:
    """Their pods have failed and stay, as those of a Job do."""
    seat = seat_of(NEXT_POD, NEXT)
    seat.hear(lease(settled, 10, None), 100.0)
    for states in (["Joining"], ["Leaving", "Joining"], ["Succeeded", "", "Leaving"]):
        assert not hasattr(seat.step(999.0, sight_of(settled, *states)), "settled"), states
    taken = write_of(seat.step(999.0, sight_of(settled, "Succeeded", "Leaving", "Leaving"))).settled
    assert (taken.run, taken.former) == (NEXT.id, ())


def test_a_run_all_of_whose_members_have_succeeded_is_complete_for_the_next() -> None:
    """Its coordinator has not closed it yet: a late pod of it would train again."""
    seat = seat_of(NEXT_POD, NEXT)
    seat.hear(lease(trained(), 10, None), 100.0)
    taken = write_of(seat.step(999.0, sight_of(trained(), *["Succeeded"] * 3))).settled
    assert (taken.former, taken.unfinished) == (((RUN.id, "Complete"),), ())


@pytest.mark.parametrize("first", [True, False])
def test_pods_that_will_not_join_are_not_waited_for(first: bool) -> None:
    """One waits for the name in another run, or its agent has ended."""
    for state, waits in (("Joining", False), ("Leaving", first), ("Succeeded", first)):
        table = Table(minimum=1) if first else lost_and_replaced()
        if first:
            table.join("pod-0", "pod-1")
            table.live_pods = {name: peer.key for name, peer in table.peers.items()} | {"pod-3": "uid-3"}
        table.others = {"pod-3": "uid-3"}
        table.said = {"pod-3": ParticipantRecord("id-other", state, "10.0.0.5:1234")}
        table.look()
        assert table.settled.state.active != waits, state


def test_a_pod_of_this_run_that_has_ended_is_not_waited_for() -> None:
    table = lost_and_replaced()
    table.join("pod-3")
    assert table.live_pods is not None
    table.live_pods = {**table.live_pods, "pod-3": table.peers["pod-3"].key}
    table.leave("pod-3")
    table.look()
    assert table.members == ["pod-0", "pod-1"]


def test_a_copy_of_a_lease_says_nothing_of_the_pod_whose_uid_it_has() -> None:
    """P8: it is of an earlier process of that pod, which has ended; the pod's own Lease says that it goes
    on."""
    sight = sight_of(trained(), "Joining", "Succeeded", "Succeeded")
    first = trained().state.members[0]
    assert sight.may_go_on(first.name, first.key)
    leaving = replace(sight.said[first.name], state="Leaving")
    copied = replace(sight, others={**sight.others, "z": first.key}, said={**sight.said, "z": leaving})
    assert copied.may_go_on(first.name, first.key)
    assert not copied.may_go_on("z", first.key)


def test_one_that_ends_is_in_no_round_that_is_not_known() -> None:
    """P3 asks for no more: its pod has failed and stays, and it will never announce itself again."""
    for state, waits in (("Joining", True), ("Leaving", False)):
        table = Table(minimum=2, maximum=3, last_call=0)
        table.train("pod-0", "pod-1", "pod-2")
        table.settled = made_again(table.settled, sure=False)
        failed = table.peers["pod-2"]
        table.leave("pod-2")
        table.look()
        number = table.number
        table.join("pod-0", "pod-1")
        record = replace(failed.record, state=state, seen_job_uid=RUN.id, seen_round=1, id="id-other")
        table.peers["pod-2"] = replace(failed, record=record)
        table.look(after=60)
        assert (table.number == number) == waits, state
