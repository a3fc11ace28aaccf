"""What this process remembers of a job between passes. All of it may be lost without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from elasticjob_operator.act.access import Access
from elasticjob_operator.observe.errors import Forbidden, Invalid


class Stale(Exception):
    """The pass was planned on something old: read from the API server and plan again."""


class Vanished(Exception):
    """The job is gone."""


@dataclass
class Refusal:
    """A pod that the API server would not take: when to try again (monotonic), how often it failed."""

    not_before: float
    failures: int
    message: str


@dataclass
class SentEvent:
    """An Event that was sent, to count repetitions on."""

    name: str
    count: int
    sent_at: float


@dataclass
class Memory:
    """``timers`` are the planner's, valid while ``continuity`` of the observation has not changed."""

    timers: Mapping[str, float] = field(default_factory=dict)
    continuity: tuple[int, ...] = ()
    access: Access | None = None
    unneeded_since: float | None = None
    """Since when ``access`` has been more than is needed (monotonic)."""
    network_policy: str | None = None
    """Of the spec, as this process last brought it about."""
    round_seen: bool = False
    """Whether the job's round Lease has been there."""
    waiting_at: float = float("-inf")
    """When a change of the waiting sentence alone was last written."""
    refused_pods: dict[str, Refusal] = field(default_factory=dict)
    refused_objects: dict[str, str] = field(default_factory=dict)
    """What must be there before a pod is made, and could not be written: why."""
    warned_generation: int = -1
    """The generation whose template was last examined for warnings."""
    events: dict[tuple[str, str], SentEvent] = field(default_factory=dict)
    events_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Events are sent behind the pass's back, one pass's after the other's."""
    event_tokens: float = 25.0
    event_tokens_at: float = 0.0

    @contextmanager
    def tells(self, what: str) -> Iterator[None]:
        """Around the writing of what must be there before a pod is made: the next pass writes into the
        status why it could not be written."""
        try:
            yield
        except (Forbidden, Invalid) as error:
            self.refused_objects[what] = error.message
            raise
        self.refused_objects.pop(what, None)

    def refusals(self) -> dict[str, str]:
        """The refused pods, with the API server's words for it but without the name, so that those refused
        for one reason can be told together; and what was refused that they need."""
        pods = {
            name: refusal.message.removeprefix(f'pods "{name}" is forbidden: ')
            for name, refusal in self.refused_pods.items()
        }
        return {**pods, **self.refused_objects}
