"""The benchmark's side: one process per participant, the same start signal for all, nothing left behind.

Participants are forked from a process that has imported torch once (`benchmarks.zygote`): they start in
milliseconds and share torch's memory. The start signal is a moment: each is told before when to call, and all
wake by the same clock, so that the order in which they are told costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchmarks.backends import Seat
from benchmarks.participant import Call, CallOnNotice, Raised, Ready, Returned

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

_ZYGOTE = Path(__file__).parent / "zygote.py"


class CrewError(RuntimeError):
    """A participant could not even make its handler: there is nothing to measure."""


@dataclass(frozen=True)
class Answers:
    """What came back: one answer per participant that gave one, and who gave none in time."""

    returned: Sequence[Returned]
    raised: Sequence[Raised]
    missing: int


class Zygote:
    """The process that participants are forked from. A context manager; it ends with its last descriptor."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_ZYGOTE), str(theirs.fileno())],
                env={**os.environ, **QUIET, **(environment or {})},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._reply()  # torch is imported

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def fork(self, connection: Connection, seat: Seat, log: Path) -> int:
        """Start a participant that is told what to do over `connection`; returns its process id."""
        socket.send_fds(self._socket, [pickle.dumps(("fork", seat, str(log)))], [connection.fileno()])
        return self._reply()

    def reap(self, pid: int) -> None:
        """Wait for a participant that was killed. Until then its process id is not used again."""
        self._socket.send(pickle.dumps(("reap", pid)))
        self._reply()

    def _reply(self) -> int:
        reply = self._socket.recv(64)
        if not reply:
            raise CrewError("the process that participants are forked from has ended")
        return int(reply)


class Participant:
    """A handle on one participant process."""

    def __init__(self, zygote: Zygote, seat: Seat, log: Path) -> None:
        self.log = log
        self.connection, theirs = Pipe()
        with theirs:
            self.pid = zygote.fork(theirs, seat, log)

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
        """SIGKILL; once it was reaped its process id may be somebody else's."""
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
            self._zygote.reap(participant.pid)
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
