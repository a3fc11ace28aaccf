"""The time limits of one job, passed whole from its spec to the round's record, to members and to judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds. The defaults are the schema's.

    ``initial_last_call_timeout``: for how long the first round waits for more participants, once enough have
    joined, and ``last_call_timeout`` for how long each later one. ``rejoin_timeout``: for how long members of
    the last round are waited for. ``establish_timeout``: for how long the leader waits for all to reach it.
    ``heartbeat_timeout``: after how long without a heartbeat a member that can't be connected to is
    unreachable; ``stall_timeout``: one that accepts connections. ``hang_timeout``: after how long without a
    step a round hangs, 0 for never.
    """

    initial_last_call_timeout: float = 300
    last_call_timeout: float = 15
    rejoin_timeout: float = 45
    establish_timeout: float = 15
    heartbeat_period: float = 1
    heartbeat_timeout: float = 10
    stall_timeout: float = 30
    hang_timeout: float = 0

    @property
    def missed_heartbeat(self) -> float:
        """A heartbeat was missed: one period, and half of one for good measure."""
        return 1.5 * self.heartbeat_period

    @property
    def suspect(self) -> float:
        """Two heartbeats were missed, and half of one for good measure: the peer is probed."""
        return 2.5 * self.heartbeat_period

    def fields(self) -> dict[str, float]:
        """The limits, as fields of a record. Those that only the former of rounds uses are left out where
        they have their defaults: every participant gets the record."""
        default = Limits()
        return {
            json: value
            for name, (json, _) in _FIELDS.items()
            if (value := getattr(self, name)) != getattr(default, name) or name not in _FOR_FORMING
        }

    @staticmethod
    def read(number: Callable[[str, int, int], float]) -> Limits:
        """Limits from fields: ``number`` gets a field's name, its least value and its default."""
        default = Limits()
        return Limits(
            **{
                name: number(json, least, int(getattr(default, name)))
                for name, (json, least) in _FIELDS.items()
            }
        )


_FIELDS = {
    "initial_last_call_timeout": ("initialLastCallTimeoutSeconds", 0),
    "last_call_timeout": ("lastCallTimeoutSeconds", 0),
    "rejoin_timeout": ("rejoinTimeoutSeconds", 0),
    "establish_timeout": ("establishTimeoutSeconds", 1),
    "heartbeat_period": ("heartbeatPeriodSeconds", 1),
    "heartbeat_timeout": ("heartbeatTimeoutSeconds", 1),
    "stall_timeout": ("stallTimeoutSeconds", 1),
    "hang_timeout": ("hangTimeoutSeconds", 0),
}
"""Each limit's name in a record, and its least value."""

_FOR_FORMING = frozenset({"initial_last_call_timeout", "last_call_timeout", "rejoin_timeout"})
