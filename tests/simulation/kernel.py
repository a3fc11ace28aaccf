"""Virtual time: an event queue, processes that are generators, and a trace that people can read."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Generator
from typing import Any

TICKS = 2**20
"""Time passes in whole ticks of about a microsecond, so that sums of times are exact in binary: clocks that
are off by whole seconds then give the same differences to the last bit, and what is due at one moment
happens in the order in which it was asked for."""

Reply = Callable[[Any], None]
Request = Callable[[Reply], None]
"""What a process yields to ask for something: it is called with the function that takes the answer. An
answer that is an exception is raised in the process."""

Script = Generator[float | Request, Any, Any]


class Kernel:
    """The queue of everything that will happen. ``rng`` is the only source of chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.trace: list[tuple[float, str]] = []
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Let something happen in so many seconds."""
        self._count += 1
        at = self.now + _whole_ticks(seconds)
        heapq.heappush(self._queue, (at, self._count, action, args))

    def run(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        until = self.now + _whole_ticks(seconds)
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, action, args = heapq.heappop(queue)
            action(*args)
        self.now = until

    def say(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append((self.now, text))

    def between(self, low: float, high: float) -> float:
        """A time between these two, drawn."""
        return low + (high - low) * self.rng.random()

    def readable(self, last: int = 400) -> str:
        """The end of the trace, a line for each event, with its virtual second."""
        return "\n".join(f"{at:9.3f}  {text}" for at, text in self.trace[-last:])


def _whole_ticks(seconds: float) -> float:
    return math.ceil(seconds * TICKS) / TICKS


class Host:
    """Something that runs processes and can be killed or frozen: an agent, an operator."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.alive = True
        self.frozen = False
        self.threads: list[Thread] = []
        self._on_thaw: list[Callable[[], None]] = []

    def spawn(self, script: Script) -> Thread:
        """Run a script; it begins when the present event is over."""
        thread = Thread(self, script)
        self.threads.append(thread)
        return thread

    def freeze(self) -> None:
        """SIGSTOP: nothing runs until ``thaw``."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: what was due meanwhile happens now, in order."""
        if self.frozen:
            self.frozen = False
            waiting, self._on_thaw = self._on_thaw, []
            for action in waiting:
                self.kernel.after(0.0, action)

    def when_thawed(self, action: Callable[[], None]) -> None:
        """Do this once the host runs again."""
        self._on_thaw.append(action)

    def die(self) -> None:
        """The process ends; what it has asked for may still be carried out."""
        self.alive = False
        for thread in self.threads:
            thread.close()
        self.threads.clear()


class Thread:
    """One script of a host. It yields seconds to sleep, from which ``wake`` gets it early, or a request."""

    def __init__(self, host: Host, script: Script) -> None:
        self._host = host
        self._script = script
        self._turn = 0
        self._sleeping = False
        self._running = False
        self.done = False
        self._host.kernel.after(0.0, self._resume, 0, None)

    def wake(self) -> None:
        """Come out of a sleep."""
        if self._sleeping:
            self._sleeping = False
            self._turn += 1
            self._host.kernel.after(0.0, self._resume, self._turn, None)

    def close(self) -> None:
        """End it where it stands."""
        self.done = True
        self._turn += 1
        if not self._running:
            self._script.close()

    def _ended(self) -> bool:
        return self.done

    def _resume(self, turn: int, answer: Any) -> None:
        if turn != self._turn or self.done:
            return
        if self._host.frozen:
            self._host.when_thawed(lambda: self._resume(turn, answer))
            return
        self._sleeping = False
        self._turn += 1
        turn = self._turn
        self._running = True
        try:
            raised = isinstance(answer, Exception)
            asked = self._script.throw(answer) if raised else self._script.send(answer)
        except StopIteration:
            self.done = True
            return
        finally:
            self._running = False
        if self._ended():
            self._script.close()
        elif isinstance(asked, (int, float)):
            self._sleeping = True
            self._host.kernel.after(asked, self._resume, turn, None)
        else:
            asked(lambda reply: self._resume(turn, reply))
