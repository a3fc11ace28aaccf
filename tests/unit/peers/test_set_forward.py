"""A round Lease that a user has set forward, while its coordinator goes on."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.peers.round_lease import Rest
from tests.unit.peers.test_seat import ME, NOTHING, lease, seat_of, trained, write_of


def test_a_coordinator_goes_on_from_the_number_to_which_its_lease_was_set() -> None:
    """P2: it had decided on the one before."""
    settled = trained()
    seat = seat_of()
    seat.hear(lease(settled, 10, ME), 100.0)
    there = replace(NOTHING, unreadable=frozenset(m.name for m in settled.state.members))
    assert isinstance(seat.step(100.0, there), Rest)
    ahead = replace(settled, state=replace(settled.state, number=1001, nonce="by-hand"))
    seat.hear(lease(ahead, 11, ME), 101.0)
    assert isinstance(seat.step(101.0, there), Rest)
    broken = write_of(seat.step(102.0, NOTHING))
    assert (broken.version, broken.settled.order >= ahead.order) == ("11", True)
