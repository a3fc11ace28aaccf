"""What the measurements need to know of a backend."""

from __future__ import annotations

import time
import uuid
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

    def requests(self, since: float) -> int | None:
        """API requests that the participants have made for the round that was joined since then (wall-clock
        seconds), its reports included; None where there are none to count."""


class TorchSession:
    """What sessions of torch's own backends share: one run id, and no cluster around them."""

    notices = False

    def __init__(self, n: int, minimum: int) -> None:
        self._n = n
        self._minimum = minimum
        self._run_id = uuid.uuid4().hex[:8]

    def lost(self, index: int) -> None:
        """They hear of no loss from a cluster."""

    def settled(self) -> None:
        """A round has nothing left to do; the pause is the one that ours gets."""
        time.sleep(1.0)

    def requests(self, since: float) -> int | None:
        """There is no API server."""
        del since
        return None


class Backend(Protocol):
    """A backend in one variant."""

    name: str
    variant: str

    def session(self, n: int, minimum: int, extra: int = 0) -> AbstractContextManager[Session]:
        """A new rendezvous of `minimum` to `n` participants, with seats for `extra` more."""
