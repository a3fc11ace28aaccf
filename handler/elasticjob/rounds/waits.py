"""Waits: what a decision waits for, how long at most, and since when. Pure.

The code that decides on a wait declares it, with a typed key, a limit and a reason.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple


class RoundWait(enum.Enum):
    """What rounds wait for. The value is the reason in words."""

    RECORD = "for the record of the round to be where its participants read it"
    ACCUSATION = "for more members to report that they cannot reach the leader"
    LEADER_SIGN = "for a sign of life from a leader that the only other member cannot reach"
    ESTABLISHMENT = "for the leader to report the round established"
    REJOIN = "for the members of the previous round to rejoin"
    UNREACHABLE = "for unreachable members to rejoin, because too few are left without them"
    FIRST_LAST_CALL = "for more participants to join the first round"
    LAST_CALL = "for more participants to join"


class WaitKey(NamedTuple):
    """One wait: its kind, and which round, pod or slot it is about."""

    kind: enum.Enum
    about: str | int = ""


class Wait(NamedTuple):
    """A declared wait. ``limit`` and ``left`` are seconds; ``left`` is 0 when the wait is over."""

    key: WaitKey
    limit: float
    left: float

    @property
    def reason(self) -> str:
        """What is waited for, in words."""
        return str(self.key.kind.value)


class Waits:
    """The waits of one pass, by the caller's monotonic clock (I9).

    ``began`` says when each wait of the pass before began. A wait that a pass does not declare is forgotten:
    it starts again when it is declared again.
    """

    def __init__(self, began: Mapping[WaitKey, float], now: float) -> None:
        self._before = began
        self._now = now
        self.began: dict[WaitKey, float] = {}
        self.wake_after: float | None = None
        """Seconds until the next pass is due without any event; None: never."""
        self._declared: dict[WaitKey, Wait] = {}

    @property
    def declared(self) -> tuple[Wait, ...]:
        """The waits that this pass is in, those that end first in front."""
        return tuple(sorted((w for w in self._declared.values() if w.left > 0), key=lambda w: w.left))

    def left(self, kind: enum.Enum, about: str | int, limit: float, passed: float = 0.0) -> float:
        """Declare a wait of ``limit`` seconds, of which at least ``passed`` are over. Returns the seconds
        that are left, 0 when it is over, and schedules a pass for its end."""
        left = max(0.0, limit - max(passed, self.elapsed(kind, about)))
        self.declare(kind, about, limit, left)
        if left > 0:
            self.wake(left)
        return left

    def declare(self, kind: enum.Enum, about: str | int, limit: float, left: float) -> None:
        """Declare a wait whose time is kept elsewhere: in the state, or by the caller of the kernel.
        It schedules nothing."""
        key = WaitKey(kind, about)
        self._declared[key] = Wait(key, limit, left)

    def elapsed(self, kind: enum.Enum, about: str | int = "") -> float:
        """Seconds since the first of the unbroken series of passes that have asked for this."""
        key = WaitKey(kind, about)
        start = self.began.get(key, self._before.get(key, self._now))
        self.began[key] = start
        return self._now - start

    def begins(self, kind: enum.Enum, about: str | int = "") -> bool:
        """Whether this is the first of the unbroken series of passes that ask for this."""
        first = not self._is_known(WaitKey(kind, about))
        self.elapsed(kind, about)
        return first

    def continues(self, kind: enum.Enum, about: str | int = "") -> bool:
        """Whether the pass before, or this one, has asked for this. Keeps it if so."""
        known = self._is_known(WaitKey(kind, about))
        if known:
            self.elapsed(kind, about)
        return known

    def restart(self, kind: enum.Enum, about: str | int = "") -> None:
        """Let it begin now."""
        self.began[WaitKey(kind, about)] = self._now

    def wake(self, seconds: float) -> None:
        """Ask for another pass after this many seconds at the latest."""
        self.wake_after = seconds if self.wake_after is None else min(self.wake_after, seconds)

    def _is_known(self, key: WaitKey) -> bool:
        return key in self.began or key in self._before
