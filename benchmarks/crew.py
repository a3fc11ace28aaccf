"""The benchmark's side: one process per participant, the same start signal for all, nothing left behind.

Participants are forked from a process that has imported torch once (`benchmarks.zygote`): they start in
milliseconds and share torch's memory. The start signal is a moment: each gets it before, and all wake by the
same clock, so that the order of these messages costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchmarks.backends import Seat
from benchmarks.participant import Call, CallOnNotice, Raised, Ready, Returned, serve
from benchmarks.zygote import Zygote

START_TIMEOUT_SECONDS = 120.0


class CrewError(RuntimeError):
    """A participant could not even make its handler: there is nothing to measure."""


@dataclass(frozen=True)
class Answers:
    """What came back: one answer per participant that gave one, and those that gave none in time."""

    returned: Sequence[Returned]
    raised: Sequence[Raised]
    missing: int


def start_zygote() -> Zygote:
    """The process that participants are forked from. A context manager."""
    return Zygote(("torch.distributed.elastic.rendezvous.registry", serve.__module__))


class Participant:
    """A handle on one participant process."""

    def __init__(self, zygote: Zygote, seat: Seat, log: Path) -> None:
        self.log = log
        self.connection, theirs = Pipe()
        with theirs:
            self.pid = zygote.fork(serve, (seat,), seat.environment, log, theirs)

    def answer(self) -> object:
        """Read its answer; call when its connection is ready."""
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
        """SIGKILL; once it was reaped its process id may be another process's."""
        os.kill(self.pid, signal.SIGKILL)


class Crew:
    """All participants of one session; leaving the context kills what is left of them."""

    def __init__(self, zygote: Zygote, log_dir: Path) -> None:
        self._zygote = zygote
        self._log_dir = log_dir
        self._all: list[Participant] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for participant in self._all:
            participant.kill()
        for participant in self._all:
            self._zygote.wait(participant.pid)
            participant.connection.close()

    def start(self, seats: Iterable[Seat]) -> list[Participant]:
        """Start a participant for each seat and wait until their handlers are there. Raises CrewError."""
        started = []
        for seat in seats:
            started.append(
                Participant(self._zygote, seat, self._log_dir / f"participant-{len(self._all)}.log")
            )
            self._all.append(started[-1])
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        for participant in started:
            if not participant.connection.poll(max(0.0, deadline - time.monotonic())):
                raise CrewError(f"no handler within {START_TIMEOUT_SECONDS:g} s, see {participant.log}")
            answer = participant.answer()
            if not isinstance(answer, Ready):
                raise CrewError(f"{answer}\n{participant.log.read_text()[-2000:]}")
        return started


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
