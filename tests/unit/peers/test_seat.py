"""What a participant does next, for what it has heard: first, deposed, behind, at a loss, at the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import RoundReport
from elasticjob.peers.pacing import early_ends
from elasticjob.peers.round_lease import (
    Done,
    Identity,
    ListAgain,
    Read,
    Rest,
    RoundLease,
    Step,
    TryPort,
    Write,
)
from elasticjob.peers.run import Run
from elasticjob.peers.seat import CLOSE_SECONDS, Seat
from elasticjob.peers.settled import Settled
from elasticjob.peers.sight import Sight
from tests.unit.peers.table import RUN, Table

ME, OTHER = Identity("pod-0", "uid-pod-0-1"), Identity("pod-1", "uid-pod-1-2")
NOTHING = Sight({}, datetime(2026, 1, 1, tzinfo=timezone.utc), "nonce")


def seat_of(me: Identity = ME, run: Run = RUN) -> Seat:
    return Seat(run, me, Table().settled.limits)


def lease(settled: Settled, version: int, holder: Identity | None = OTHER) -> RoundLease:
    return RoundLease(
        str(version), str(holder or ""), settled.record().dump(), settled.rest().dump(), transitions=version
    )


def trained() -> Settled:
    """Round 1 of pod-0, pod-1 and pod-2."""
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    return table.settled


def write_of(step: Step) -> Write:
    assert isinstance(step, Write), step
    return step


def follower(settled: Settled) -> Seat:
    """One that has seen this, held by the other."""
    seat = seat_of()
    seat.hear(lease(settled, 10), 100.0)
    return seat


def must_see(seat: Seat) -> bool:
    """Whether it has to see the others now."""
    return seat.needs_sight(999.0)


def announce(seat: Seat, now: float) -> None:
    """Its agent waits for a round."""
    record = ParticipantRecord("id-9", "Joining", "10.0.0.9:1", seen_job_uid=RUN.id, seen_round=1)
    seat.own.take({"participant": record.dump()}, now)


def test_the_first_makes_the_round_lease_and_the_second_reads_it() -> None:
    first, second = seat_of(), seat_of(OTHER)
    made = write_of(first.step(0.0, None))
    assert (made.version, made.settled.order) == ("", (0, 2))
    first.hear_written(lease(made.settled, 1, ME), made, 0.0)
    assert first.coordinates
    write_of(second.step(0.0, None))
    second.hear_conflict()
    assert isinstance(second.step(0.0, None), Read)
    second.hear(lease(made.settled, 1, ME), 0.1)
    assert not second.coordinates
    assert isinstance(second.step(0.2, None), Rest)


def test_each_write_carries_the_version_that_it_was_decided_on() -> None:
    """P1. What was seen late changes nothing."""
    settled = trained()
    seat = seat_of()
    seat.hear(lease(settled, 10, ME), 100.0)
    seat.hear(lease(settled, 9, OTHER), 100.1)
    broken = write_of(seat.step(101.0, NOTHING))
    assert (broken.version, broken.settled.state.cause) == ("10", "PodLost")


def test_a_deposed_coordinator_reads_and_follows() -> None:
    settled = trained()
    seat = seat_of()
    seat.hear(lease(settled, 10, ME), 100.0)
    write_of(seat.step(101.0, NOTHING))
    seat.hear_conflict()
    assert isinstance(seat.step(101.0, NOTHING), Read)
    seat.hear(lease(settled, 11, OTHER), 101.1)
    assert not must_see(seat)
    assert isinstance(seat.step(101.1, NOTHING), Rest)


def test_a_request_without_an_answer_may_have_been_carried_out() -> None:
    seat = seat_of()
    seat.hear(lease(trained(), 10, ME), 100.0)
    write_of(seat.step(101.0, NOTHING))
    seat.hear_nothing(101.0, pause=0.5)
    assert isinstance(seat.step(101.1, NOTHING), Rest)
    assert isinstance(seat.step(101.5, NOTHING), Read)


def test_a_lease_that_was_set_back_is_set_forward() -> None:
    """P2: one that knew nothing has made it again. There may have been later rounds, of which this one has
    not heard."""
    settled = trained()
    seat = follower(settled)
    seat.hear(lease(Table().settled, 12), 101.0)
    restored = write_of(seat.step(102.0, None))
    assert (restored.version, restored.settled) == ("12", replace(settled, unsure=True))


@pytest.mark.parametrize(("before", "after"), [(7, 8), (2**31 - 1, 2**31 - 1)])
def test_a_claim_counts_as_far_as_the_api_server_takes_it(before: int, after: int) -> None:
    """P7: it refuses leaseTransitions beyond an int32, and the coordinator could never be replaced."""
    seat = seat_of()
    seat.hear(replace(lease(trained(), 10), transitions=before), 100.0)
    announce(seat, 100.0)
    claimed = write_of(seat.step(107.0, None))
    assert claimed.claim
    assert claimed.transitions == after


def test_a_deletion_that_was_seen_is_undone_and_one_that_was_not_waits() -> None:
    settled = trained()
    broken = replace(settled, state=replace(settled.state, phase="Broken"))
    seen, missed = follower(broken), follower(broken)
    seen.hear_deleted(lease(broken, 11), 101.0)
    assert isinstance(seen.step(101.1, None), Rest)
    assert write_of(seen.step(102.0, None)).settled == broken
    missed.hear_absent(101.0)
    assert isinstance(missed.step(106.0, None), Rest)
    again = write_of(missed.step(109.0, None))
    assert again.settled == replace(broken, unsure=True)


def test_a_lease_of_which_half_can_be_read_begins_after_its_round() -> None:
    """P2, P7: all that live announce themselves again before a round is formed."""
    settled = trained()
    for record, state in (("{", settled.rest().dump()), (settled.record().dump(), "{")):
        seat = seat_of()
        seat.hear(RoundLease("10", str(OTHER), record, state), 100.0)
        assert seat.unreadable
        announce(seat, 100.0)
        claimed = write_of(seat.step(107.0, None))
        assert (claimed.settled.state.number, claimed.settled.unsure) == (2, True)


def test_two_that_cannot_reach_each_other_do_not_take_turns_for_ever() -> None:
    settled = trained()
    seat = follower(settled)
    report = RoundReport(settled.state.nonce, established=True, silent_ranks=(1,))
    seat.own.take({"report": report.dump()}, 101.0)
    assert write_of(seat.step(101.2, None)).claim
    seat.hear(lease(settled, 11, ME), 101.3)
    seat.hear(lease(settled, 12, OTHER), 101.4)
    assert isinstance(seat.step(101.8, None), Rest)


def test_the_port_of_a_coordinator_that_does_not_answer_is_tried_first() -> None:
    seat = follower(trained())
    announce(seat, 100.0)
    assert isinstance(seat.step(100.5, None), Rest)
    assert seat.step(101.1, None) == TryPort("pod-1")
    seat.hear_port("pod-1", refuses=False, now=101.2)
    assert isinstance(seat.step(101.3, None), Rest)
    seat.hear_port("pod-1", refuses=True, now=102.3)
    assert "refuses" in write_of(seat.step(102.4, None)).claim


def test_another_run_of_this_name_is_followed_when_it_is_over_or_its_members_are_gone() -> None:
    """P8."""
    settled = trained()
    newer = Run(RUN.name, "run-2", 1, 2)
    seat = seat_of(Identity("pod-9", "uid-9"), newer)
    seat.hear(lease(settled, 10), 100.0)
    assert must_see(seat)
    empty = replace(NOTHING, round_lease=lease(settled, 10))
    there = replace(empty, others={m.name: m.key for m in settled.state.members})
    for sight in (None, there):
        assert isinstance(seat.step(200.0, sight), Rest)
    taken = write_of(seat.step(200.0, empty))
    assert (taken.version, taken.settled.run, taken.settled.state.number) == ("10", "run-2", 0)
    closed = replace(settled, state=replace(settled.state, phase="Closed"))
    seat.hear(lease(closed, 11), 201.0)
    assert not must_see(seat)
    assert write_of(seat.step(202.0, None)).settled.run == "run-2"


def test_a_coordinator_that_does_not_see_its_own_writes_lists_again() -> None:
    """Its watch may hang on a dead connection while its writes arrive: those that wait see it renew."""
    first = Table().settled
    seat = seat_of()
    seat.hear(lease(first, 10, ME), 100.0)
    deaf = replace(NOTHING, round_lease=lease(first, 10, ME))
    steps: list[Step] = []
    for second in range(0, 12, 2):
        step = seat.step(100.0 + second, deaf)
        steps.append(step)
        if isinstance(step, Write):
            seat.hear_written(lease(first, 11 + second, ME), step, 100.0 + second)
            seat.step(100.0 + second, deaf)
    assert [type(step) for step in steps].count(ListAgain) in (1, 2)
    hears = seat_of()
    hears.hear(lease(first, 10, ME), 100.0)
    for second in range(0, 60, 2):  # each write arrives with the next one
        step = hears.step(100.0 + second, replace(NOTHING, round_lease=lease(first, 9 + second, ME)))
        assert not isinstance(step, ListAgain)
        if isinstance(step, Write):
            hears.hear_written(lease(first, 11 + second, ME), step, 100.0 + second)


def test_a_coordinator_does_not_renew_for_those_who_are_gone_or_silent() -> None:
    """The pod of one that has failed stays, and its Lease with it."""
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.join("pod-3")
    dead = table.peers["pod-3"]
    waits = replace(NOTHING, peers=table.peers)
    for sight, renews in (
        (waits, True),
        (replace(waits, gone={dead.key: "its pod has failed"}), False),
        (replace(waits, peers={**table.peers, "pod-3": replace(dead, silent=25.0)}), False),
    ):
        seat = seat_of()
        seat.hear(lease(table.settled, 10, ME), 100.0)
        assert isinstance(seat.step(200.0, sight), Write) == renews


def test_after_two_conflicts_what_was_read_is_the_truth() -> None:
    """etcd was restored from a backup, and its versions have gone back: no write ever fits the newest one."""
    settled = trained()
    seat = seat_of()
    seat.hear(lease(settled, 1000, ME), 100.0)
    now, writes = 101.0, 0
    while not (isinstance(step := seat.step(now, NOTHING), Write) and step.version == "10"):
        if isinstance(step, Write):
            writes += 1
            seat.hear_conflict()
        elif isinstance(step, Read):
            seat.hear_read(lease(settled, 10, ME), now)
            assert isinstance(seat.step(now, NOTHING), Rest), "a pause after each conflict"
        else:
            assert isinstance(step, Rest)
            now += max(0.01, step.seconds)
    assert writes == 2


def test_the_age_of_a_round_that_was_not_seen_to_begin_is_not_known() -> None:
    """A process that starts again, and coordinates, would count the end of each round as early."""
    settled = trained()
    seen = seat_of()
    seen.hear(lease(Table().settled, 9), 100.0)
    seen.hear(lease(settled, 10), 110.0)
    assert seen.round_age(115.0) == 5.0
    late = follower(settled)
    assert late.round_age(115.0) is None
    again = replace(settled, state=replace(settled.state, number=2, nonce="nonce-2"))
    late.hear(lease(again, 11), 120.0)
    assert late.round_age(121.0) == 1.0
    assert [early_ends(3, False, age, 0, 0) for age in (None, 5.0, 60.0)] == [3, 4, 0]


def test_a_late_participant_of_a_run_that_is_over_does_not_begin_it_again() -> None:
    """Another run of this name has taken the round Lease, and remembers how the one before has ended."""
    settled = trained()
    closed = replace(settled, state=replace(settled.state, phase="Closed"), outcome="Complete")
    newer = seat_of(Identity("pod-9", "uid-9"), Run(RUN.name, "run-2", 1, 2))
    newer.hear(lease(closed, 10), 100.0)
    taken = write_of(newer.step(102.0, None)).settled
    assert taken.former == ((RUN.id, "Complete"),)
    late = seat_of()
    late.hear(lease(taken, 11, newer.me), 103.0)
    assert late.ended_before == "Complete"
    over = replace(taken, state=replace(taken.state, phase="Closed"))
    for version, follower in ((12, newer.me), (13, None)):
        late.hear(lease(over, version, follower), 104.0)
        assert isinstance(late.step(999.0, NOTHING), Rest)


def test_none_is_judged_by_what_was_not_heard_before_the_leases_are_listed_anew() -> None:
    """P4: the watch may hang."""
    table = Table()
    table.join("pod-0", "pod-1", "pod-2")
    table.look()
    seat = seat_of()
    seat.hear(lease(table.settled, 10, ME), 100.0)
    sight = replace(NOTHING, peers=dict(table.peers))
    assert write_of(seat.step(100.0, sight)).settled == table.settled, "it only renews"
    late = 101.0 + 2 * table.settled.limits.establish_timeout
    assert isinstance(seat.step(late, sight), ListAgain)
    assert write_of(seat.step(late, sight)).settled.state.cause == "LeaderUnreachable"


def test_a_coordinator_that_ends_leaves_its_place_to_the_others() -> None:
    settled = trained()
    seat = seat_of()
    seat.hear(lease(settled, 10, ME), 100.0)
    seat.end(101.0)
    left = write_of(seat.step(101.0, NOTHING))
    assert left.release
    seat.hear_written(lease(settled, 11, None), left, 101.1)
    assert isinstance(seat.step(101.1, NOTHING), Done)


def test_one_that_has_succeeded_waits_for_the_others_but_not_for_ever() -> None:
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    table.succeed("pod-0")
    seat = seat_of()
    seat.hear(lease(table.settled, 10, ME), 100.0)
    seat.own.take({"finished": table.nonce}, 100.0)
    seat.end(101.0)
    sight = replace(NOTHING, peers=table.peers)
    assert isinstance(seat.step(101.0, sight), Rest)
    assert write_of(seat.step(101.1 + CLOSE_SECONDS, sight)).release
    table.succeed("pod-1", "pod-2")
    assert write_of(seat.step(102.0, replace(NOTHING, peers=table.peers))).settled.outcome == "Complete"


def test_one_that_stops_on_a_signal_coordinates_no_longer() -> None:
    seat = seat_of()
    seat.hear(lease(trained(), 10, ME), 100.0)
    leaving = ParticipantRecord("id-1", "Leaving")
    seat.own.take({"participant": leaving.dump()}, 101.0)
    assert write_of(seat.step(101.0, NOTHING)).release


def test_a_run_that_goes_on_takes_its_lease_back_from_one_that_never_began() -> None:
    """P2, P8: a user has deleted the round Lease while it trains, and a pod of the next run has made it."""
    settled = trained()
    seat = follower(settled)
    other = replace(Settled.first(Run(RUN.name, "run-2", 1, 3), settled.limits), unsure=True)
    seat.hear(lease(other, 20, Identity("next-0", "uid-next")), 101.0)
    back = write_of(seat.step(101.0, None))
    assert (back.settled.run, back.settled.order, back.version) == (RUN.id, settled.order, "20")


def test_a_run_that_has_had_rounds_is_waited_for_while_its_members_are_seen() -> None:
    """P8: their Leases may have been deleted by hand."""
    settled = trained()
    seat = Seat(Run(RUN.name, "run-2", 2, 3), Identity("next-0", "uid-next"), settled.limits)
    seat.hear(lease(settled, 10), 100.0)
    key = settled.state.members[0].key
    empty = replace(NOTHING, round_lease=lease(settled, 10))
    assert isinstance(seat.step(101.0, replace(empty, live_pods={"pod-0": key})), Rest)
    ended = replace(empty, live_pods={}, others={"pod-0": key}, gone={key: "its pod has ended"})
    assert write_of(seat.step(101.0, ended)).claim == "the run before is over"


NEXT = Run(RUN.name, "run-2", 2, 3)
NEXT_POD = Identity("next-0", "uid-next")
HELD = replace(NOTHING, others={NEXT_POD.pod: NEXT_POD.uid})


@pytest.mark.parametrize("holder", [ME, Identity("", "")], ids=["a coordinator", "nobody yet"])
@pytest.mark.parametrize("members", [True, False])
def test_a_run_without_members_is_waited_for_while_one_of_its_pods_is_there(
    holder: Identity, members: bool
) -> None:
    """P8: all members were lost at once, or no round has begun; the coordinator may have been evicted."""
    settled = trained() if members else Table().settled
    seat = Seat(NEXT, NEXT_POD, settled.limits)
    seat.hear(lease(settled, 10, holder), 100.0)
    empty = replace(NOTHING, round_lease=lease(settled, 10, holder))
    waits = replace(empty, others={ME.pod: ME.uid}, other_runs={ME.pod: RUN.id})
    assert isinstance(seat.step(999.0, waits), Rest)
    assert isinstance(seat.step(999.0, replace(waits, gone={ME.uid: "its pod has ended"})), Write)
    third = replace(empty, others={"third-0": "uid-third"}, other_runs={"third-0": "run-3"})
    assert isinstance(seat.step(999.0, third), Write), "that one waits for the name, too"


def test_a_run_is_not_over_by_what_a_watch_that_hangs_does_not_show() -> None:
    """P8: the members of its newest round are perhaps not in what was seen before that round."""
    settled = trained()
    seat = Seat(NEXT, NEXT_POD, settled.limits)
    seat.hear(lease(settled, 20), 100.0)
    old = replace(NOTHING, round_lease=lease(settled, 10))
    assert isinstance(seat.step(101.0, old), Rest)
    steps = [type(seat.step(110.0 + second, old)) for second in range(6)]
    assert steps == [ListAgain, Rest, Rest, Read, Rest, Rest], "it may have been deleted, unheard"
    assert isinstance(seat.step(120.0, replace(old, round_lease=lease(settled, 20))), Write)


def test_a_run_in_the_place_of_one_that_was_unsure_is_unsure() -> None:
    """P8: an even earlier run may train, whose round Lease was deleted."""
    began = replace(Settled.first(Run(RUN.name, "run-3", 1, 3), trained().limits), unsure=True)
    seat = seat_of()
    seat.hear(lease(began, 10, NEXT_POD), 100.0)
    empty = replace(NOTHING, round_lease=lease(began, 10, NEXT_POD))
    assert write_of(seat.step(999.0, empty)).settled.unsure


def next_run() -> Settled:
    """It has taken the place of the first, which had no member any more."""
    return Settled.first(NEXT, Table().settled.limits)


def test_a_deleted_lease_of_another_run_is_left_to_that_run_while_it_may_go_on() -> None:
    """P8: one that still waits in the run before would make it again as it was before."""
    late, new = follower(trained()), seat_of()
    for seat in (late, new):
        seat.hear(lease(next_run(), 20, NEXT_POD), 101.0)
        seat.hear_deleted(lease(next_run(), 21, NEXT_POD), 102.0)
        assert must_see(seat)
        for sight in (None, HELD):
            assert isinstance(seat.step(999.0, sight), Rest)
    for seat in (late, new):
        assert isinstance(seat.step(999.0, NOTHING), ListAgain), "what it sees may be old"
    again = write_of(late.step(999.0, NOTHING))
    assert (again.version, again.settled.run, again.settled.unsure) == ("", RUN.id, True)
    assert write_of(new.step(999.0, NOTHING)).settled.unsure


def test_a_deleted_lease_of_a_run_that_was_over_is_made_by_the_next() -> None:
    closed = replace(next_run(), state=replace(next_run().state, phase="Closed"), outcome="Complete")
    seat = seat_of()
    seat.hear_deleted(lease(closed, 21, NEXT_POD), 102.0)
    assert write_of(seat.step(102.0, None)).settled.former == ((NEXT.id, "Complete"),)


def test_a_run_that_another_has_followed_does_not_take_its_lease_back() -> None:
    """The other's Lease was deleted, and made again by one that knew nothing: it looks as if it never
    began."""
    seat = follower(trained())
    seat.hear(lease(next_run(), 20, NEXT_POD), 101.0)
    again = lease(replace(next_run(), unsure=True), 30, NEXT_POD)
    seat.hear(again, 102.0)
    assert isinstance(seat.step(999.0, replace(HELD, round_lease=again)), Rest)
    seat.hear(lease(trained(), 31), 1000.0)
    seat.hear(lease(replace(next_run(), unsure=True), 32, NEXT_POD), 1001.0)
    assert write_of(seat.step(1002.0, HELD)).settled.run == RUN.id


def test_two_runs_of_which_no_round_is_known_do_not_take_turns_for_ever() -> None:
    """Both round Leases were made again after a deletion, one after the other."""
    first = replace(Table().settled, state=replace(Table().settled.state, number=2), unsure=True)
    second = replace(next_run(), state=replace(next_run().state, number=2), unsure=True)
    one, other = seat_of(), seat_of(NEXT_POD, NEXT)
    one.hear(lease(first, 10, ME), 100.0)
    other.hear(lease(second, 11, NEXT_POD), 100.0)
    one.hear(lease(second, 11, NEXT_POD), 101.0)
    other.hear(lease(first, 10, ME), 101.0)
    other.hear(lease(first, 12, ME), 101.0)
    there = replace(NOTHING, others={ME.pod: ME.uid, **HELD.others}, round_lease=lease(first, 12, ME))
    assert sorted(type(seat.step(999.0, there)).__name__ for seat in (one, other)) == ["Rest", "Write"]


def told(seat: Seat) -> str:
    """The sentence on what it waits for."""
    return seat.obstacle.sentence(seat.run.id, seat.run.name) if seat.obstacle is not None else ""


def test_a_run_that_waits_for_another_of_its_name_says_so_and_what_to_do() -> None:
    seat = seat_of(NEXT_POD, NEXT)
    assert told(seat) == ""
    seat.hear(lease(trained(), 10), 100.0)
    assert f"run {RUN.id} has the name {RUN.name} (its pods: pod-0, pod-1, pod-2)" in told(seat)
    assert "give one of them another name, in --rdzv-endpoint" in told(seat)
    seat.hear(lease(Table().settled, 11), 101.0)
    assert "(its coordinator: pod-1)" in told(seat)
    over = replace(trained(), state=replace(trained().state, phase="Closed"))
    seat.hear(lease(over, 12), 102.0)
    assert told(seat) == "", "it is over"
    goes_on = follower(trained())
    goes_on.hear(lease(replace(next_run(), unsure=True), 11, NEXT_POD), 101.0)
    assert told(goes_on) == "", "it takes its Lease back"


def test_of_many_pods_that_wait_for_a_name_a_few_look_at_those_that_have_it() -> None:
    """Each looks at the Leases of both runs; all do in the end, because those before them may be lost."""
    seats = [Seat(NEXT, NEXT_POD, Table().settled.limits, turn=turn) for turn in range(128)]
    for seat in seats:
        seat.hear(lease(trained(), 10, None), 100.0)
        seat.hear(lease(trained(), 11, None), 102.0)
    look = [sum(seat.needs_sight(100.0 + after) for seat in seats) for after in (0.0, 5.0, 74.0, 75.0)]
    assert look == [8, 16, 120, 128]
    for seat in seats:
        seat.hear(lease(replace(trained(), run=NEXT.id), 12, OTHER), 200.0)
    assert not any(seat.needs_sight(999.0) for seat in seats)
