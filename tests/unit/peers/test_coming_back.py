"""A run whose name another one has taken, and which comes back (P2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob.peers.records import MOST_FORMER
from elasticjob.peers.round_lease import Identity
from elasticjob.peers.settled import Settled, following
from tests.unit.peers.table import RUN
from tests.unit.peers.test_seat import ME, NEXT, NEXT_POD, NOTHING, lease, seat_of, trained, write_of


def test_only_the_last_runs_are_remembered() -> None:
    before = replace(
        trained(),
        run="run-x",
        former=tuple((f"run-{n}", "Complete") for n in range(20)),
        unfinished=tuple((f"stopped-{n}", n) for n in range(20)),
    )
    after = following(trained(), before)
    assert after.former == before.former[-MOST_FORMER:]
    assert after.unfinished == (*before.unfinished[-MOST_FORMER + 1 :], ("run-x", 1))


def at(settled: Settled, number: int, phase: str = "Active") -> Settled:
    """The same run in this round."""
    return replace(settled, state=replace(settled.state, number=number, nonce=f"n{number}", phase=phase))


@pytest.mark.parametrize("missed", [False, True])
@pytest.mark.parametrize("phase", ["Broken", "Closed"])
def test_a_run_that_comes_back_begins_above_its_last_number(phase: str, missed: bool) -> None:
    """P2: another took the name in round 50, when all of its pods were gone for a moment. A pod of it
    may have ``missed`` all but the first round."""
    last, mine = at(trained(), 50), trained()
    other = seat_of(NEXT_POD, NEXT)
    other.hear(lease(last, 10, ME), 100.0)
    taken = write_of(other.step(999.0, replace(NOTHING, round_lease=lease(last, 10, ME)))).settled
    assert (taken.former, taken.unfinished) == ((), ((RUN.id, 50),))
    over = at(taken, 3, phase)
    back = seat_of(Identity("pod-9", "uid-9"))
    if missed:
        back.hear(lease(mine, 9, ME), 100.0)
    back.hear(lease(over, 20, NEXT_POD), 2000.0)
    again = write_of(back.step(2010.0, replace(NOTHING, round_lease=lease(over, 20, NEXT_POD)))).settled
    assert (again.run, again.order, again.state.members, again.unsure) == (RUN.id, (51, 2), (), True)
    assert again.unfinished == (() if phase == "Closed" else ((NEXT.id, 3),))
    assert dict(again.former).get(NEXT.id) == ("" if phase == "Closed" else None)
