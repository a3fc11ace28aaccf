"""A coordinator that does not see the participants, because their list takes its time."""

from __future__ import annotations

from elasticjob.peers.round_lease import Rest, Write
from elasticjob.peers.seat import BLIND_SECONDS
from tests.unit.peers.table import Table
from tests.unit.peers.test_seat import ME, NOTHING, OTHER, announce, lease, seat_of, trained


def test_a_coordinator_renews_while_its_list_is_under_way_but_not_for_ever() -> None:
    """The next in the order would have to list them, too, for as long."""
    first = Table().settled
    seat, other = seat_of(), seat_of(OTHER)
    announce(other, 100.0)
    for one in (seat, other):
        one.hear(lease(first, 10, ME), 100.0)
    now, version = 100.0, 10
    while not isinstance(other.step(now, None), Write):
        step = seat.step(now, None)
        if isinstance(step, Write):
            assert (step.version, step.settled, step.claim) == (str(version), first, "")
            assert "its list of the participants is under way" in step.waiting
            version += 1
            seat.hear_written(lease(first, version, ME), step, now)
            other.hear(lease(first, version, ME), now)
        now += 0.5
    assert 100.0 + BLIND_SECONDS < now < 110.0 + BLIND_SECONDS
    assert isinstance(seat.step(now, None), Rest)
    seat.hear(lease(first, version + 1, OTHER), now)
    seat.hear(lease(first, version + 2, ME), now + 60.0)
    assert isinstance(seat.step(now + 63.0, None), Write), "it has taken over again"


def test_what_it_sees_for_a_moment_gives_it_the_same_time_again() -> None:
    seat = seat_of()
    seat.hear(lease(trained(), 10, ME), 100.0)
    assert isinstance(seat.step(100.0, None), Write)
    assert isinstance(seat.step(200.0, None), Rest)
    seat.step(201.0, NOTHING)
    assert isinstance(seat.step(202.0, None), Write)
