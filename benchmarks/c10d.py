"""torch's c10d backend, as it ships or with store sharing off.

Everything that is arbitrary is decided in its favour: participant 0 hosts the store and is never the one that
is killed, names are addresses (no DNS lookups), and survivors hear of a loss at the moment it happens.
"""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Iterator, Mapping

from benchmarks.backends import Seat
from benchmarks.results import STORE_SHARING_OFF

_HOST = "127.0.0.1"


class C10dSession:
    """One run id on one store, and no cluster around it."""

    notices = False

    def __init__(self, n: int, minimum: int, variant: str) -> None:
        self._n = n
        self._minimum = minimum
        self._run_id = uuid.uuid4().hex[:8]
        self._environment = {
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if variant == STORE_SHARING_OFF else "0"
        }
        self._endpoint = f"{_HOST}:{free_port()}"

    def seat(self, index: int) -> Seat:
        """Participant 0 is the store's host."""
        return Seat(
            backend="c10d",
            endpoint=self._endpoint,
            run_id=self._run_id,
            min_nodes=self._minimum,
            max_nodes=self._n,
            local_addr=_HOST,
            config={"is_host": "true" if index == 0 else "false"},
            environment=self._environment,
        )

    def lost(self, index: int) -> None:
        """Its participants hear of no loss from a cluster."""

    def settled(self) -> None:
        """A round has nothing left to do; the pause is the one that ours gets."""
        time.sleep(1.0)

    def processes(self) -> Mapping[str, int]:
        """None: the store is in participant 0."""
        return {}

    def requests(self, since: float) -> int | None:
        """There is no API server."""
        del since
        return None


class C10d:
    """The backend in one variant: empty, or `STORE_SHARING_OFF`."""

    name = "c10d"

    def __init__(self, variant: str) -> None:
        self.variant = variant

    @contextlib.contextmanager
    def session(self, n: int, minimum: int, extra: int = 0) -> Iterator[C10dSession]:
        """A new run id; extra seats need no preparation."""
        del extra
        yield C10dSession(n, minimum, self.variant)


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
