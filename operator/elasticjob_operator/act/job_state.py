"""What this process remembers of a job between passes. All of it may be lost without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from elasticjob.rounds.waits import Wait, WaitKey
from elasticjob_operator.act.access import Access
from elasticjob_operator.act.pod_creation_limiter import Reservation
from elasticjob_operator.act.write_backoff import Target, WriteBackoff
from elasticjob_operator.plan.state.model import WAIT_RENEW_SECONDS
from elasticjob_operator.plan.state.status_size import MAX_STATUS_BYTES
from elasticjob_operator.plan.template.accelerators import Claims

_LAST_RENEWAL = 2.0
"""In intervals: by then the last renewal has come that was due by the old one, jitter and all."""
AT_ONCE = 16


class Stale(Exception):
    """The pass was planned on something old: read from the API server and plan again."""


class Vanished(Exception):
    """The job is gone."""


@dataclass
class SentEvent:
    """An Event that was sent, to count repetitions on."""

    name: str
    count: int
    sent_at: float


@dataclass
class Renewals:
    """The interval at which waiting participants renew their Leases: the longest that one of them may use.
    A participant that learns of a shorter one first finishes the current one."""

    seconds: int = WAIT_RENEW_SECONDS
    shorter_since: float | None = None

    def update(self, seconds: int, now: float) -> int:
        """The round Lease has this many seconds."""
        if seconds >= self.seconds:
            self.seconds, self.shorter_since = seconds, None
        elif self.shorter_since is None:
            self.shorter_since = now
        elif now - self.shorter_since > _LAST_RENEWAL * self.seconds:
            self.seconds, self.shorter_since = seconds, None
        return self.seconds


class Leavers(NamedTuple):
    """Members that leave a round: since when (monotonic), and how many have left so far."""

    since: float
    left: int


@dataclass
class Memory:
    """``timers`` are the planner's, valid while ``continuity`` of the observation has not changed. ``waits``
    are what it waited for at ``planned_at`` (monotonic), for people who ask."""

    timers: Mapping[WaitKey, float] = field(default_factory=dict)
    continuity: tuple[int, ...] = ()
    waits: tuple[Wait, ...] = ()
    planned_at: float = 0.0
    access: Access | None = None
    missed_since: float | None = None
    """Since when members of a round that has ended have not come back (monotonic)."""
    rights_rewritten_for: int = 0
    """The round after which ``access`` was last written again for that."""
    rights_doubted_at: float = float("-inf")
    """When that was last done because members of a running round seemed to lack their rights."""
    accounts_gone: int = 0
    """How often the job's own service account was known to be deleted when it was last looked for."""
    account_lost_at: float = float("-inf")
    """When it was last made again (monotonic)."""
    account_lost: bool = False
    """It was deleted, and is not made again yet."""
    unneeded_since: float | None = None
    """Since when ``access`` has been more than is needed (monotonic)."""
    owned_written_at: float = float("-inf")
    """When ``access`` or ``network_policy`` was last being brought about (monotonic)."""
    network_policy: str | None = None
    """Of the spec, as this process last brought it about."""
    unmade: set[Target] = field(default_factory=set)
    """The rights and the policy of a new job: they are made, and not looked for first."""
    podless: bool = False
    """No operator has ever made a pod for it: none can be missing because the job was deleted."""
    renewals: Renewals = field(default_factory=Renewals)
    checked_silence: Mapping[str, int] = field(default_factory=dict)
    """The participants whose silence has been checked, and the version of their Leases then."""
    leases_seen: set[str] = field(default_factory=set)
    """Which of the round Lease and the Lease of its member list have been there, by name."""
    waiting_at: float = float("-inf")
    """When a change of the waiting sentence alone was last written."""
    pods_reserved: Reservation | None = None
    """When the next of its pods are due, while they are not."""
    granted: frozenset[str] = frozenset()
    """The pods whose names this process last wrote into the Role."""
    claims: Claims = field(default_factory=dict)
    """The ResourceClaimTemplates that its pods were made by."""
    modesty_refused: bool = False
    """A LimitRange takes the handler's container only as large as the one that trains."""
    uncounted: str = ""
    """What is to be said of GPUs that are not counted."""
    counted_generation: int = -1
    """The generation whose template was last looked at for that."""
    protected: bool = False
    """Whether the job's pods have the network policy that they should have."""
    max_status_bytes: int = MAX_STATUS_BYTES
    """What the status may have: less where the API server has found the whole object too large."""
    leavers: Leavers | None = None
    """While a round's end waits for other members to leave it."""
    left_to_next_pass: bool = False
    """The last pass wrote the status and left the rest to the next."""
    confirmed: object = None
    """What was published when it was last read again together with the job (``Published``)."""
    stale: bool = False
    """A write for which no pass waited has found that something has to be read again."""
    write_backoff: WriteBackoff = field(default_factory=WriteBackoff)
    under_way: set[Target] = field(default_factory=set)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    """For writes of which there may be thousands."""
    warned_generation: int = -1
    """The generation whose template was last examined for warnings."""
    events: dict[tuple[str, str], SentEvent] = field(default_factory=dict)
    events_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Events are sent behind the pass's back, one pass's after the other's."""
    event_tokens: float = 25.0
    event_tokens_at: float = 0.0
