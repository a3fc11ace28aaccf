"""Threads of which one runs at a time, in virtual time: who goes on after each step is drawn by a seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Killed(BaseException):
    """The process of this thread is dead."""


class Process:
    """Threads that die together. ``stalled`` is until when they do not run, as after SIGSTOP."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stalled = 0.0
        self.was_stalled = False
        self.failed = 0
        """Errors of the storage that it has met."""


class _Thread:
    def __init__(self, process: Process, body: Callable[[], None]) -> None:
        self.process = process
        self.wakes = 0.0
        self.turn = threading.Semaphore(0)
        self.ended = False
        self.body = body
        self.thread: threading.Thread | None = None


class Scheduler:
    """The clock, and the threads."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._threads: list[_Thread] = []
        self._here = threading.Semaphore(0)
        self._current: _Thread | None = None
        self._error: BaseException | None = None

    def start(self, process: Process, body: Callable[[], None]) -> None:
        self._threads.append(_Thread(process, body))

    def run(self) -> None:
        """Until all threads have ended. Raises what one of them has raised."""
        while self._threads:
            ready = [thread for thread in self._threads if self._wakes(thread) <= self.now]
            if not ready:
                self.now = min(self._wakes(thread) for thread in self._threads)
                continue
            thread = self.random.choice(ready)
            self._resume(thread)
            if self._error is not None:
                self._kill_all()
                raise self._error

    def step(self) -> None:
        """Let others run; raises Killed in a dead process."""
        self.sleep(0)

    def sleep(self, seconds: float) -> None:
        me = self._current
        assert me is not None
        me.wakes = self.now + seconds
        self._here.release()
        me.turn.acquire()
        if me.process.dead:
            raise Killed

    def _wakes(self, thread: _Thread) -> float:
        return self.now if thread.process.dead else max(thread.wakes, thread.process.stalled)

    def _resume(self, thread: _Thread) -> None:
        self._current = thread
        if thread.thread is None:
            thread.thread = threading.Thread(target=self._run, args=(thread,), daemon=True)
            thread.thread.start()
        else:
            thread.turn.release()
        self._here.acquire()
        if thread.ended:
            thread.thread.join()
            self._threads.remove(thread)

    def _run(self, thread: _Thread) -> None:
        try:
            if not thread.process.dead:
                thread.body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # the scheduler raises it
            self._error = error
        thread.ended = True
        self._here.release()

    def _kill_all(self) -> None:
        for thread in list(self._threads):
            thread.process.dead = True
            if thread.thread is None:
                self._threads.remove(thread)
        while self._threads:
            self._resume(self._threads[0])


class Lock:
    """A lock among threads of which one runs at a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._scheduler.sleep(0.1)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
