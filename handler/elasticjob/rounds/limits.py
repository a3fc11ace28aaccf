"""The limits of a round's waits and judgements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds.

    ``first_last_call``: for how long the first round waits for more, once enough have joined, and
    ``last_call`` for how long each later one. ``rejoin``: for how long members of the last round are waited
    for. ``establish``: for how long the leader waits for all to reach it. ``heartbeat``: after how long a
    member that can't be connected to is unreachable. ``hang``: after how long without a step a round hangs,
    0 for never.
    """

    first_last_call: int = 300
    last_call: int = 15
    rejoin: int = 45
    establish: int = 15
    heartbeat: int = 10
    hang: int = 0
