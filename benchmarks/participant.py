"""A participant's side: one process with one rendezvous handler, which obeys commands from a pipe.

The process is forked from one that has imported torch (`benchmarks.zygote`). This module imports nothing
heavy by itself: the benchmark's own process needs its types.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.backends import Seat
from benchmarks.cable import NAMESPACE_ENV, enter

POLL_SECONDS = 0.1
"""torchrun's `--monitor-interval`, at which an agent asks `num_nodes_waiting()`."""


@dataclass(frozen=True)
class Call:
    """Call `next_rendezvous` at `at` (monotonic seconds, the same clock in every process of a machine)."""

    at: float


@dataclass(frozen=True)
class CallOnNotice:
    """Poll `num_nodes_waiting()` as torchrun does, and call `next_rendezvous` when it is positive."""


@dataclass(frozen=True)
class Ready:
    """The handler is there."""


@dataclass(frozen=True)
class Returned:
    """`next_rendezvous` returned. Times are monotonic seconds."""

    called: float
    returned: float
    rank: int
    world_size: int


@dataclass(frozen=True)
class Raised:
    """The handler raised, or the process is gone; `error` is one line."""

    error: str


def serve(connection: Connection, seat: Seat) -> None:
    """The process's whole life: make the handler, obey until the pipe is closed."""
    try:
        if NAMESPACE_ENV in seat.environment:
            enter(seat.environment[NAMESPACE_ENV])
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        handler = get_rendezvous_handler(
            RendezvousParameters(
                backend=seat.backend,
                endpoint=seat.endpoint,
                run_id=seat.run_id,
                min_nodes=seat.min_nodes,
                max_nodes=seat.max_nodes,
                local_addr=seat.local_addr,
                **seat.config,
            )
        )
        connection.send(Ready())
        while True:
            command = connection.recv()
            if isinstance(command, Call):
                time.sleep(max(0.0, command.at - time.monotonic()))
            else:
                while handler.num_nodes_waiting() <= 0:
                    time.sleep(POLL_SECONDS)
            called = time.monotonic()
            info = handler.next_rendezvous()
            connection.send(Returned(called, time.monotonic(), info.rank, info.world_size))
    except EOFError:
        pass
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error is the outcome
        traceback.print_exc()
        connection.send(Raised(f"{type(error).__name__}: {error}".splitlines()[0]))
