"""The benchmark's side: one process per participant, the same start signal for all, nothing left behind.

Participants are forked from multiprocessing's fork server, which has imported torch once and has no threads:
they start in milliseconds and share torch's memory. The start signal is a moment: each is told before when to
call, and all wake by the same clock, so that the order in which they are told costs nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.backends import Seat
from benchmarks.participant import Call, CallOnNotice, Raised, Ready, Returned, serve

START_TIMEOUT_SECONDS = 120.0
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo",
    "RES_OPTIONS": "attempts:0",
}
"""For every process of the benchmark: no threads at import, no C++ warnings, no interface lookups, no DNS.

DNS: a TCPStore asks for the name of each peer, on its server's only thread, and is silent for 5 s when the
name server drops a query (pytorch#159007). The figures would be those of the machine's name server: with one
that answers 50 queries a second, both backends take 5 to 180 s from N = 16 on. Without attempts the lookup
fails at once, after which torch asks no more; addresses and /etc/hosts work as ever.
"""

_context = multiprocessing.get_context("forkserver")


class CrewError(RuntimeError):
    """A participant could not even make its handler: there is nothing to measure."""


@dataclass(frozen=True)
class Answers:
    """What came back: one answer per participant that gave one, and who gave none in time."""

    returned: Sequence[Returned]
    raised: Sequence[Raised]
    missing: int


class Participant:
    """A handle on one participant process."""

    def __init__(self, seat: Seat, log: Path) -> None:
        self.log = log
        self.connection, theirs = _context.Pipe()
        self.process: BaseProcess = _context.Process(target=serve, args=(theirs, seat, str(log)), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self) -> object:
        """What it has said; call when its connection is ready."""
        try:
            answer: object = self.connection.recv()
        except (EOFError, ConnectionError):
            return Raised("the process is gone")
        return answer

    def tell(self, command: Call | CallOnNotice) -> None:
        """Give a command; a process that is gone is found out when its answer is read."""
        with contextlib.suppress(ConnectionError):
            self.connection.send(command)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()


class Crew:
    """All participants of one session; leaving the context kills what is left of them."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._all: list[Participant] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for participant in self._all:
            participant.kill()
        for participant in self._all:
            participant.process.join()
            participant.connection.close()

    def start(self, seats: Iterable[Seat]) -> list[Participant]:
        """Start a participant for each seat and wait until their handlers are there. Raises CrewError."""
        started = []
        for seat in seats:
            started.append(Participant(seat, self._log_dir / f"participant-{len(self._all)}.log"))
            self._all.append(started[-1])
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        for participant in started:
            if not participant.connection.poll(max(0.0, deadline - time.monotonic())):
                raise CrewError(f"no handler within {START_TIMEOUT_SECONDS:g} s, see {participant.log}")
            answer = participant.answer()
            if not isinstance(answer, Ready):
                raise CrewError(f"{answer}\n{participant.log.read_text()[-2000:]}")
        return started


def warm_up() -> None:
    """Start the fork server, which imports torch: before anything is timed, and with `QUIET` in force."""
    os.environ.update(QUIET)
    _context.set_forkserver_preload(
        ["torch.distributed.elastic.rendezvous.registry", "benchmarks.participant"]
    )
    process = _context.Process(target=int, daemon=True)
    process.start()
    process.join()


def in_time_for(participants: Sequence[Participant]) -> float:
    """A moment near enough to wait for and late enough to tell all participants before (monotonic)."""
    return time.monotonic() + 0.3 + 0.003 * len(participants)


def collect(participants: Sequence[Participant], timeout: float) -> Answers:
    """Wait for everyone's answer, at most `timeout` seconds, and no longer than to the first error."""
    deadline = time.monotonic() + timeout
    waiting: dict[Connection, Participant] = {one.connection: one for one in participants}
    returned: list[Returned] = []
    raised: list[Raised] = []
    while waiting and not raised:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            answer = waiting.pop(connection).answer()
            if isinstance(answer, Returned):
                returned.append(answer)
            else:
                raised.append(answer if isinstance(answer, Raised) else Raised(f"unexpected {answer!r}"))
    return Answers(returned, raised, len(waiting))
