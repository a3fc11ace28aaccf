"""What this process remembers of a job between passes. All of it may be lost without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticjob_operator.act.access import Access


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
    waiting_at: float = float("-inf")
    """When a change of the waiting sentence alone was last written."""
    refused_pods: dict[str, Refusal] = field(default_factory=dict)
    refused_access: tuple[str, str] | None = None
    """The object that the job's pods need for their rights and that the API server would not take, and its
    words."""
    warned_generation: int = -1
    """The generation whose template was last examined for warnings."""
    events: dict[tuple[str, str], SentEvent] = field(default_factory=dict)
    events_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Events are sent behind the pass's back, one pass's after the other's."""
    event_tokens: float = 25.0
    event_tokens_at: float = 0.0

    def refusals(self) -> dict[str, str]:
        """The refused pods, with the API server's words for it but without the name, so that those refused
        for one reason can be told together; and what was refused of their rights."""
        pods = {
            name: refusal.message.removeprefix(f'pods "{name}" is forbidden: ')
            for name, refusal in self.refused_pods.items()
        }
        return (
            pods if self.refused_access is None else {**pods, self.refused_access[0]: self.refused_access[1]}
        )
