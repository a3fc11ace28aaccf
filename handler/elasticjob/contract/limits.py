"""The time limits of one job: from its spec by the round's record to members and monitors, as one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds. The defaults are the schema's."""

    initial_last_call_timeout: float = 300
    """How long the first round waits for more participants once enough have joined."""
    last_call_timeout: float = 15
    """How long each later round waits for more."""
    rejoin_timeout: float = 45
    """How long members of the last round are waited for."""
    establish_timeout: float = 15
    """How long the leader waits for all members to reach it."""
    heartbeat_period: float = 1
    heartbeat_timeout: float = 10
    """How long without a heartbeat until a member that can't be connected to is unreachable."""
    stall_timeout: float = 30
    """How long until one is that accepts connections."""
    hang_timeout: float = 0
    """How long without a step until a round hangs; 0: never."""

    @property
    def missed_heartbeat(self) -> float:
        """The silence after which a heartbeat was missed: one period, and a quarter of one as a margin. When
        a peer is to be probed, one that was heard a heartbeat later was silent for a period and a half."""
        return 1.25 * self.heartbeat_period

    @property
    def suspect(self) -> float:
        """The silence after which the peer is probed: two periods, and half of one as a margin."""
        return 2.5 * self.heartbeat_period

    def fields(self) -> dict[str, float]:
        """The limits as fields of a record. Every participant reads it, so those that only the operator uses
        are left out if they have their defaults."""
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
"""Limit -> its name in a record, and its least value."""

_FOR_FORMING = frozenset({"initial_last_call_timeout", "last_call_timeout", "rejoin_timeout"})
