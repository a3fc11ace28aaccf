"""Stamps of the clock in one participant's handler: what `next_rendezvous` is made of.

Each stamp is the moment (monotonic seconds) when a step of the last call was reached, by the step's name.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

Stamps = dict[str, float]


def install() -> Stamps:
    """Wrap the handler's own functions. Returns the stamps; clear them before a call of `next_rendezvous`."""
    from elasticjob.agent.in_round import InRound
    from elasticjob.leases.writer import LeaseWriter
    from elasticjob.watch import establish

    stamps: Stamps = {}

    def around(owner: Any, attribute: str, before: str = "", after: str = "") -> None:
        """Stamp the first call of this function, and its return."""
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if before:
                stamps.setdefault(before, time.monotonic())
            result = function(*arguments, **named)
            if after:
                stamps.setdefault(after, time.monotonic())
            return result

        setattr(owner, attribute, call)

    around(LeaseWriter, "_try_write", "announcing", "announced")
    around(InRound, "establish", "woken")
    around(establish, "connect", "connecting", "connected")
    around(establish.Establishment, "run", after="barrier passed")
    return stamps
