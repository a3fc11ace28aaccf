"""What the measurements need to know of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Seat:
    """How one participant gets its handler: torch's `RendezvousParameters`, and its environment."""

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class Session(Protocol):
    """One rendezvous from the first join to the last. Index 0 must be started before the others."""

    notices: bool
    """Whether survivors learn of a loss by themselves, through `num_nodes_waiting()`. If not, the benchmark
    tells them at the moment of the kill: perfect detection, in favour of the backend."""

    def seat(self, index: int) -> Seat:
        """The place of participant `index`: 0 to n-1, then the extra ones."""

    def lost(self, index: int) -> None:
        """What the world around does right after participant `index` was killed."""

    def settled(self) -> None:
        """Return when the round that was joined is in its steady state."""

    def processes(self) -> Mapping[str, int]:
        """Processes that the participants share, by name: `operator` and `apiserver`, if there are any."""

    def requests(self, since: float) -> int | None:
        """API requests that the participants have made for the round that was joined since then (wall-clock
        seconds), its reports included; None where there are none to count."""


class Backend(Protocol):
    """A backend in one variant."""

    name: str
    variant: str

    def session(self, n: int, minimum: int, extra: int = 0) -> AbstractContextManager[Session]:
        """A new rendezvous of `minimum` to `n` participants, with seats for `extra` more."""
