"""Which members have stopped sending heartbeats, and whether they are lost (docs/internals/detection.md).
Pure.

A false alarm is worse than a second of delay: a missing heartbeat only triggers a probe, which is a
connection to the member's own port. The result of the probe decides how long the silence is tolerated.

Members on one node are lost together, but their last heartbeats are up to one period apart, and the first
loss ends the round and with it the watching. So a verdict waits for up to a period and a quarter while other
members are falling silent, too. Members that are lost together are then reported together, and the next
round waits for none of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from elasticjob.contract.limits import Limits

OWN_STALL_SECONDS = 1.0
"""A monitor whose tick comes so late was stalled itself: all silences start again."""


class ProbeResult(enum.Enum):
    """What a connection to the suspect's own port met."""

    REFUSED = "the connection to its port is refused"
    SILENT = "its port does not answer"
    ACCEPTED = "it accepts connections but sends no heartbeat"


class Loss(NamedTuple):
    """Why a member is lost: in words, the result of the last probe, and how many seconds it was silent."""

    text: str
    probe: ProbeResult
    silent_seconds: float


class HeartbeatMonitor:
    """Watches the heartbeats of peers, by rank; all times are the caller's monotonic seconds."""

    def __init__(self, ranks: Iterable[int], limits: Limits, now: float) -> None:
        self._changed = dict.fromkeys(ranks, (0, now))
        self._limits = limits
        self._last_tick = now
        self.lost: dict[int, Loss] = {}

    def tick(self, now: float, counts: Mapping[int, int]) -> list[int]:
        """Take the counters in; returns the ranks to probe now, longest silent first."""
        due = min(self._last_tick + self._limits.heartbeat_period, self.next_look())
        stalled = now - due > OWN_STALL_SECONDS
        self._last_tick = now
        suspects = []
        for rank, (count, since) in self._changed.items():
            fresh = counts.get(rank, count)
            if fresh != count or stalled:
                self._changed[rank] = (fresh, now)
            elif rank not in self.lost and now - since > self._limits.suspect:
                suspects.append(rank)
        return sorted(suspects, key=lambda rank: self._changed[rank][1])

    def next_look(self) -> float:
        """When a peer that stays silent is next to be probed for another reason than the next heartbeat: it
        becomes suspect, or may be lost if its port does not answer, or others are waited for no longer;
        infinity: never. A tick at this time saves up to a period."""
        limits = [self._limits.suspect, self._limit(ProbeResult.SILENT)]
        limits += [limit + self._limits.missed_heartbeat for limit in limits]
        return min(
            (
                since + limit
                for rank, (_, since) in self._changed.items()
                for limit in limits
                if rank not in self.lost and self._last_tick - since <= limit
            ),
            default=float("inf"),
        )

    def record_probe(self, now: float, rank: int, probe: ProbeResult) -> bool:
        """Take the result of a probe in; returns whether that rank is lost now. A verdict stays."""
        if rank not in self._changed or rank in self.lost:
            return rank in self.lost
        silent = now - self._changed[rank][1]
        limit = self._limit(probe)
        if silent <= self._limits.suspect or silent < limit:
            return False
        waited = self._last_tick - self._changed[rank][1] >= limit + self._limits.missed_heartbeat
        if waited or not self._others_fall_silent(now, rank, limit):
            self.lost[rank] = Loss(f"no heartbeat for {silent:.1f} s, {probe.value}", probe, silent)
            return True
        return False

    def _limit(self, probe: ProbeResult) -> float:
        """The silence after which a peer is lost by this result."""
        limits = self._limits
        least = {
            ProbeResult.REFUSED: limits.suspect,
            ProbeResult.SILENT: limits.heartbeat_timeout,
            ProbeResult.ACCEPTED: max(limits.stall_timeout, limits.heartbeat_timeout),
        }[probe]
        return max(least, limits.suspect)

    def _others_fall_silent(self, now: float, rank: int, limit: float) -> bool:
        """Whether another member has missed a heartbeat and cannot be lost yet: it was no suspect at the last
        tick, so that it is not probed, or is not silent long enough."""
        return any(
            self._limits.missed_heartbeat < self._last_tick - since
            and (self._last_tick - since <= self._limits.suspect or now - since < limit)
            for other, (_, since) in self._changed.items()
            if other != rank and other not in self.lost
        )
