"""The decisions of one candidate in the leader election. No I/O, no clock: the candidate's own clock gives
the times.

The rules, for a Lease that is written with a resourceVersion each time:

* The leading operator renews every ``retry_period``. It may act until ``renew_deadline`` after it *began*
  the last renewal that was accepted, and then steps down.
* Another candidate takes the Lease over when it has seen it unchanged for the duration that the Lease
  contains. It sees a change only after the leading one began to write it. So at least ``lease_duration -
  renew_deadline`` lie between the end of one leadership and the next; the clocks of the two machines
  may show anything (I9).
* An outdated view does no harm: the write that takes over is for the version that was seen.
* A Lease that was deleted is waited out like one that is held, because its holder may still act.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from elasticjob.contract.fields import MAX_INT32

_NEVER = float("-inf")


@dataclass(frozen=True)
class Timing:
    """Seconds; the names are those of client-go and ``kube-controller-manager``, with whose 15, 10 and 2 a
    takeover would last somewhat longer than 15."""

    lease_duration: float = 12.0
    """How long others wait after the last renewal that they saw."""
    renew_deadline: float = 8.0
    """How long the leading operator acts after its last renewal."""
    retry_period: float = 2.0
    """Time between two renewals, and between tries after an error."""

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                "leader election needs lease duration > renew deadline > retry period > 0, found "
                f"{self.lease_duration:g} s, {self.renew_deadline:g} s, {self.retry_period:g} s"
            )


@dataclass(frozen=True)
class Place:
    """Which Lease, and the times."""

    namespace: str
    name: str
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True)
class Record:
    """What is in the Lease. The times in it are for people: no decision uses them."""

    holder: str = ""
    """Empty: it was released."""
    duration: float = 0.0
    """Seconds, whole ones in the API; 0 if absent."""
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0

    def dump(self) -> dict[str, Any]:
        """The ``spec`` of the Lease."""
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": max(1, math.ceil(self.duration)),
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaseTransitions": self.transitions,
        }

    @classmethod
    def read(cls, lease: Mapping[str, Any]) -> Record:
        """Read a Lease with any content: absent fields are empty."""
        spec: Mapping[str, Any] = lease.get("spec") or {}
        return cls(
            holder=str(spec.get("holderIdentity") or ""),
            duration=float(spec.get("leaseDurationSeconds") or 0),
            acquired=str(spec.get("acquireTime") or ""),
            renewed=str(spec.get("renewTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
        )


class Step(Enum):
    """What to do now."""

    READ = "read the Lease"
    WRITE = "write ``proposal``: take the Lease over, or renew it"
    WAIT = "nothing before ``due``"
    STEP_DOWN = "end everything that acts, then say ``stepped_down``"


@dataclass(frozen=True)
class Candidate:
    """What one process knows. Each method returns the candidate after something has happened."""

    me: str
    """Unique for each process, so that a restarted one is another candidate."""
    timing: Timing = field(default_factory=Timing)
    looked: bool = False
    """Whether the Lease has been read at all."""
    record: Record | None = None
    """The last that was seen; None: there is no Lease."""
    version: int = 0
    """The Lease's resourceVersion when ``record`` was seen."""
    seen_at: float = _NEVER
    """When ``record`` was first seen as it is."""
    renewed_at: float = _NEVER
    """When the last renewal that was accepted was begun."""
    leading: bool = False
    """True until ``stepped_down``. Whether it may act says ``may_act``."""

    def may_act(self, now: float) -> bool:
        """Whether a write may begin now."""
        return self.leading and self._holds() and now < self.renewed_at + self.timing.renew_deadline

    def step(self, now: float) -> Step:
        """What to do now."""
        if self.leading:
            if not self.may_act(now):
                return Step.STEP_DOWN
            return Step.WRITE if now >= self.due() else Step.WAIT
        if not self.looked:
            return Step.READ
        return Step.WRITE if now >= self.due() else Step.WAIT

    def due(self) -> float:
        """When the next renewal, or the attempt to take over, is due."""
        if self.leading:
            return self.renewed_at + self.timing.retry_period
        if self.record is None:
            # Never there: it has no holder. Vanished: see the module.
            return self.seen_at + self.timing.lease_duration
        if self.record.holder in ("", self.me):
            return _NEVER
        return self.seen_at + (
            self.record.duration if self.record.duration > 0 else self.timing.lease_duration
        )

    def deadline(self) -> float:
        """When the leadership ends without a further renewal."""
        return self.renewed_at + self.timing.renew_deadline

    def proposal(self, wall: str) -> Record:
        """The record to write at the wall clock's ``wall``."""
        old = self.record
        duration = float(math.ceil(self.timing.lease_duration))
        if old is None:
            return Record(self.me, duration, wall, wall, 0)
        if old.holder == self.me:
            return replace(old, duration=duration, renewed=wall)
        return Record(self.me, duration, wall, wall, min(old.transitions + 1, MAX_INT32))

    def saw(self, record: Record | None, version: int, now: float, fresh: bool = False) -> Candidate:
        """The Lease was shown by a list or a watch, or (``fresh``) read by itself with no write of ours under
        way. ``record`` None: it is not there; ``version`` then is that of the list or of the deletion."""
        if version < self.version and not fresh:
            return self  # a watch that lags behind our own write
        if self.looked and record == self.record:
            return replace(self, version=version)
        first_and_free = record is None and not self.looked
        seen_at = _NEVER if first_and_free else now
        return replace(self, looked=True, record=record, version=version, seen_at=seen_at)

    def wrote(self, record: Record, version: int, began: float) -> Candidate:
        """The API server has accepted ``record``; the request was begun at ``began``."""
        return replace(
            self,
            looked=True,
            record=record,
            version=version,
            seen_at=began,
            renewed_at=began,
            leading=True,
        )

    def stepped_down(self) -> Candidate:
        """Nothing acts any more. A Lease that is ours still may be taken again at once."""
        return replace(self, leading=False, renewed_at=_NEVER)

    def _holds(self) -> bool:
        # The leading operator, if it finds no Lease, creates it again; meanwhile no other candidate may.
        return self.record is None or self.record.holder == self.me
