"""What this process remembers of a job between passes. All of it may be lost without harm.

Each part belongs to one module, which gets only that part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from elasticjob.contract.devices import Claims
from elasticjob.rounds.waits import Wait, WaitKey
from elasticjob_operator.act.owned import Contents, OwnedKind
from elasticjob_operator.act.owned_kinds import KINDS, RIGHTS
from elasticjob_operator.act.pod_creation_limiter import Reservation
from elasticjob_operator.act.write_backoff import WriteBackoff
from elasticjob_operator.observe.packed_template import PackedTemplate
from elasticjob_operator.plan.state.model import WAIT_RENEW_SECONDS, Target
from elasticjob_operator.plan.state.status_size import MAX_STATUS_BYTES

_LAST_RENEWAL = 2.0
"""Renewal intervals after which the last renewal has come that was due by the old one, with jitter."""
_WRITES_AT_ONCE = 16

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Begins what may outlive a pass, as a task of this name."""


class Stale(Exception):
    """The pass was planned on something old: read from the API server and plan again."""


class Vanished(Exception):
    """The job is gone."""


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
class PlannerState:
    """What the next plan is made from, beside the status and what is observed."""

    timers: Mapping[WaitKey, float] = field(default_factory=dict)
    """The planner's, valid while ``continuity`` does not change."""
    continuity: tuple[int, ...] = ()
    """Changes when the observation may have missed something (``ClusterCache.continuity``)."""
    waits: tuple[Wait, ...] = ()
    """What the planner waited for at ``planned_at``, for people who ask."""
    planned_at: float = 0.0
    """Monotonic."""
    renewals: Renewals = field(default_factory=Renewals)
    checked_silence: Mapping[str, int] = field(default_factory=dict)
    """The participants whose silence has been checked, and the version of their Leases then."""


@dataclass
class WriteState:
    """The writes that fail or have not ended."""

    backoff: WriteBackoff = field(default_factory=WriteBackoff)
    under_way: set[Target] = field(default_factory=set)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_WRITES_AT_ONCE))
    """Limits how many run at once of the writes of which there may be thousands."""
    stale: bool = False
    """A write for which no pass waited has found that something has to be read again."""


@dataclass
class OwnedState:
    """The objects that the job owns beside its pods (``owned_kinds``). Times are monotonic."""

    written: dict[OwnedKind, Contents] = field(default_factory=dict)
    """What this process last wrote or found, by kind."""
    written_at: float = float("-inf")
    """When any of them was last written."""
    unmade: set[Target] = field(default_factory=set)
    """Targets that a new job does not have yet: they are created without a look for them first."""
    granted: frozenset[str] = frozenset()
    """The pods whose names this process last wrote into the Role."""
    unneeded_since: float | None = None
    """When the rights began to be more than is needed."""
    missed_since: float | None = None
    """When members of a round that has ended were first missed."""
    rights_rewritten_for: int = 0
    """The last round for whose missed members the rights were written again."""
    rights_doubted_at: float = float("-inf")
    """When the rights were last written again because members of a running round seemed to lack theirs."""
    accounts_gone: int = 0
    """How often the job's own service account was known to be deleted when it was last looked for."""
    account_lost_at: float = float("-inf")
    """When it was last made again."""
    account_lost: bool = False
    """It was deleted, and is not made again yet."""
    protected: bool = False
    """Whether the job's pods have the network policy that they should have."""

    def is_written(self, kind: OwnedKind, contents: Contents) -> bool:
        """Whether the object of this kind is known to have these contents."""
        return kind in self.written and self.written[kind] == contents

    def doubt_rights(self) -> None:
        """Let the pods' rights be written again."""
        for kind in KINDS:
            if kind.target == RIGHTS:
                self.written.pop(kind, None)


@dataclass
class PodState:
    """What the creation of pods depends on."""

    none_made: bool = False
    """No operator has ever made a pod for the job: none can be missing because the job was deleted."""
    reserved: Reservation | None = None
    """When the next of its pods are due, while they are not."""
    claims: Claims = field(default_factory=dict)
    """The ResourceClaimTemplates that its pods were made by."""
    group: str = ""
    """The PodGroup that new pods are in, if any."""
    small_refused: bool = False
    """A LimitRange takes the handler's container only as large as the one that trains."""


@dataclass
class PublishedState:
    """What was published of the job's rounds."""

    leases_seen: set[str] = field(default_factory=set)
    """Which of the round Lease and the Lease of its member list have been there, by name."""
    waiting_at: float = float("-inf")
    """When a change of the waiting sentence alone was last written (monotonic)."""


@dataclass
class WarningState:
    """What the job's users were warned of."""

    uncounted: str = ""
    """About GPUs that are not counted."""
    counted_generation: int = -1
    """The generation whose template was last looked at for that."""
    warned_generation: int = -1
    """The generation whose template was last examined for all else."""


@dataclass
class SentEvent:
    """An Event that was sent, to count repetitions on."""

    name: str
    count: int
    sent_at: float


@dataclass
class EventState:
    """The Events of a job that were sent, and how many more may be."""

    sent: dict[tuple[str, str], SentEvent] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """No pass waits for its Events; those of one pass are sent after those of the pass before."""
    tokens: float = 25.0
    tokens_at: float = 0.0


@dataclass
class QueueState:
    """What is remembered of the queue that a job is in."""

    flavors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The specs of the ResourceFlavors that the queue has chosen since it last admitted the job."""
    template: tuple[Any, PackedTemplate | None] = (None, None)
    """The job's template with what the queue says of nodes, after what it was made from."""


@dataclass
class JobState:
    """See the module."""

    planner: PlannerState = field(default_factory=PlannerState)
    writes: WriteState = field(default_factory=WriteState)
    owned: OwnedState = field(default_factory=OwnedState)
    pods: PodState = field(default_factory=PodState)
    published: PublishedState = field(default_factory=PublishedState)
    warnings: WarningState = field(default_factory=WarningState)
    events: EventState = field(default_factory=EventState)
    queue: QueueState = field(default_factory=QueueState)
    max_status_bytes: int = MAX_STATUS_BYTES
    """How large the status may be: less where the API server has found the whole object too large."""
    confirmed: object = None
    """What was published when it was last read again together with the job (``Published``)."""
    leavers: Leavers | None = None
    """While a round's end waits for other members to leave it."""
    left_to_next_pass: bool = False
    """The last pass wrote the status and left the rest to the next."""
