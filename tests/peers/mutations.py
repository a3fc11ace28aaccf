"""Rules without which some history breaks what the oracle checks (kept as a test)."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """Without ``rule`` (of ``tests.rules``) one of the first ``histories`` from ``seed`` must break one of
    ``breaks``."""

    breaks: tuple[str, ...]
    rule: str
    seed: int = 0
    histories: int = 300


MUTATIONS = [
    Mutation(("P1",), "P1 a write carries the version that it was decided on"),
    Mutation(("P2", "P3", "I4"), "P2 the number of a round that is not known is left out"),
    Mutation(("P2", "P3", "I4"), "P2 the first number is left out where there were rounds", 520, 30),
    Mutation(("P2", "P3", "I4"), "P2 a record that was set back is set forward", 10075, 10),
    Mutation(("P2",), "P2 a run that comes back begins above its last number"),
    Mutation(("P3",), "P3 a member is known to have left"),
    Mutation(("I6",), "P3 the ports of silent members are tried", 250, 100),
    Mutation(("P4",), "P4 a second look before silence counts", 0, 60),
    Mutation(("P4",), "P4 others have time to write after the API server was away", 1590, 10),
    Mutation(("end",), "a run fails after ten early ends"),
    Mutation(("P5",), "P5 patience ends"),
    Mutation(("I6", "P5"), "P5 one whose list is under way shows that it lives", 60),
    Mutation(("P6",), "P6 silence is counted by one clock", 600),
    Mutation(("P3", "P4"), "P7 what cannot be read is there"),
    Mutation(("I6",), "P7 what a participant claims to have seen is bounded", 95, 10),
    Mutation(("P4",), "P4 a failure is that of its own run", 300, 60),
    Mutation(("end",), "P4 exit code 0 of a pod that is taken away is no success"),
    Mutation(("P8",), "P8 no run's Lease is taken while it may train"),
]
