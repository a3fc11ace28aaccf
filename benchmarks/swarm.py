"""The benchmark's side of the swarm: participants as coroutines in a few processes.

One process per participant ends at some hundred on two cores. Here a participant is a coroutine
(`benchmarks.swarm_participant`) that speaks the handler's protocol to a real API server, and a process holds
hundreds of them (`benchmarks.swarm_process`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.swarm_messages import Call, Passed, SwarmSeat, Usage
from benchmarks.zygote import QUIET

START_SECONDS = 120.0
_PROCESS = Path(__file__).parent / "swarm_process.py"


class SwarmError(RuntimeError):
    """The swarm could not obey a command; the text says what happened."""


@dataclass(frozen=True)
class Round:
    """A round that all participants have joined. Times are monotonic seconds; `call_at` is the moment when
    all were to call, `last_call` and the others are the last participant's."""

    call_at: float
    last_call: float
    last_written: float
    first_seen: float
    last_seen: float
    last_return: float

    @property
    def seconds(self) -> float:
        """Seconds from the last participant's call to the last participant's return."""
        return self.last_return - self.last_call


class Swarm:
    """The participants of one job. A context manager; leaving it kills them."""

    def __init__(self, seats: Sequence[SwarmSeat], processes: int) -> None:
        self._n = len(seats)
        self._running: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._parts = [list(seats[index::processes]) for index in range(min(processes, len(seats)))]

    def __enter__(self) -> Swarm:
        try:
            for _ in self._parts:
                self._running.append(_start())
            self._answers(START_SECONDS)
            for (_, connection), part in zip(self._running, self._parts, strict=True):
                connection.send(part)
            self._answers(START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self._running:
            process.kill()
            process.wait()
            connection.close()
        self._running.clear()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [process.pid for process, _ in self._running]

    def call(self, timeout: float) -> Round:
        """All call `next_rendezvous` at one moment. Raises SwarmError if not all return from one round."""
        call_at = time.monotonic() + 0.3 + 0.001 * self._n
        for _, connection in self._running:
            connection.send(Call(call_at, timeout))
        answers = self._answers(timeout + 30.0)
        passed: list[Passed] = []
        for answer in answers:
            if not isinstance(answer, list):
                raise SwarmError(str(answer))
            passed.extend(answer)
        return common_round(passed, self._n, call_at)

    def usage(self) -> Usage:
        """The use of all processes so far."""
        for _, connection in self._running:
            connection.send("usage")
        found = [answer for answer in self._answers(30.0) if isinstance(answer, Usage)]
        return Usage(
            sum(one.sent for one in found),
            sum(one.received for one in found),
            sum(one.refused for one in found),
            sum(one.cpu_seconds for one in found),
        )

    def _answers(self, timeout: float) -> list[object]:
        deadline = time.monotonic() + timeout
        answers: list[object] = []
        for process, connection in self._running:
            try:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    raise SwarmError(f"process {process.pid} of the swarm gave no answer in {timeout:g} s")
                answers.append(connection.recv())
            except (EOFError, OSError) as error:
                raise SwarmError(f"a process of the swarm has ended: {error!r}") from None
        return answers


def common_round(passed: Sequence[Passed], n: int, call_at: float) -> Round:
    """The round of all: the same number, leader and size, and every rank once. Raises SwarmError."""
    rounds = {(one.round, one.leader, one.world_size) for one in passed}
    if len(rounds) != 1 or {one.world_size for one in passed} != {n}:
        raise SwarmError(f"no common round: {sorted(rounds)[:3]}")
    if sorted(one.rank for one in passed) != list(range(n)):
        raise SwarmError("the ranks are not 0 to n-1, each once")
    return Round(
        call_at,
        max(one.called for one in passed),
        max(one.written for one in passed),
        min(one.seen for one in passed),
        max(one.seen for one in passed),
        max(one.returned for one in passed),
    )


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(_PROCESS), str(theirs.fileno())],
            env={**os.environ, **QUIET},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    return process, ours
