"""Watches when the agent's workers end, to the millisecond, and with which status.

One thread waits for all of them (pidfds), which costs nothing while they run. It only peeks at a status
(WNOWAIT) and leaves it for torch, which polls ten times a second. If torch was faster, the status is None
here, and torch has it. Without pidfds (macOS, a sandbox that forbids them), the thread polls
twenty times a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from elasticjob.workers.open_files import restore_limit

logger = logging.getLogger(__name__)

START_POLL_SECONDS = 0.02
"""How often the thread asks whether the workers are there, from the barrier to their start."""
POLL_SECONDS = 0.05
"""How often it polls without pidfds."""
IDLE_SECONDS = 1.0
"""How often it checks whether it has to end."""
INSPECT_SECONDS = 5.0
"""How often it inspects what the workers have started."""


@dataclass(frozen=True)
class WorkerExit:
    """A worker has ended at ``at`` (``time.monotonic``); ``exit_code`` is negative for a signal."""

    local_rank: int
    pid: int
    at: float
    exit_code: int | None


class WorkerExitWatcher:
    """Watches the workers of one round. ``find`` returns their pids by local rank, None before they start.
    ``inspect`` is called every few seconds while they run, and when one has ended."""

    def __init__(
        self, find: Callable[[], Mapping[int, int] | None], inspect: Callable[[], None] = lambda: None
    ) -> None:
        self._find = find
        self._inspect = inspect
        self._inspect_at = 0.0
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._exits: list[WorkerExit] = []
        self._running: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="elasticjob-workers", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, within a second."""
        self._stop.set()

    def exits(self, seconds: float) -> list[WorkerExit]:
        """The workers that have ended, in that order. Waits until all have, at most this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, seconds)
            return list(self._exits)

    def _run(self) -> None:
        try:
            pids = self._find_once()
            while pids is None:
                if self._stop.wait(START_POLL_SECONDS):
                    return
                pids = self._find_once()
            restore_limit(pids.values())
            with self._changed:
                self._running = dict(pids)
            with contextlib.ExitStack() as files:
                self._watch(files)
        except Exception:  # a thread of ours: no signal's exception passes here
            logger.warning("no longer watching for the exit of workers", exc_info=True)
        finally:
            with self._changed:
                self._running = {}
                self._changed.notify_all()

    def _find_once(self) -> Mapping[int, int] | None:
        try:
            return self._find()
        except Exception:  # short of descriptors, mostly: they are asked for again
            logger.debug("cannot find the workers; retrying", exc_info=True)
            return None

    def _inspect_below(self, at_once: bool = False) -> None:
        """Never raises: the ends of workers are what this thread is for."""
        now = time.monotonic()
        if now < self._inspect_at and not at_once:
            return
        self._inspect_at = now + INSPECT_SECONDS
        try:
            self._inspect()
        except Exception:
            logger.debug("cannot look at what the workers have started", exc_info=True)

    def _watch(self, files: contextlib.ExitStack) -> None:
        by_file: dict[int, int] = {}
        poll = select.poll()
        for rank, pid in list(self._running.items()):
            try:
                file = os.pidfd_open(pid)
            except ProcessLookupError:
                self._record_exit(rank, ExitStatus.UNKNOWN)
            except (AttributeError, OSError):
                if exit_status(os.P_PID, pid) is ExitStatus.UNKNOWN:
                    self._forget(rank)  # no child of this process: its end cannot be seen
            else:
                files.callback(os.close, file)
                by_file[file] = rank
                poll.register(file, select.POLLIN)
        unseen = self._running.keys() - by_file.values()
        while self._running and not self._stop.is_set():
            found_at_once = []
            for file, _ in poll.poll((POLL_SECONDS if unseen else IDLE_SECONDS) * 1000):
                poll.unregister(file)
                found_at_once.append((by_file[file], exit_status(os.P_PIDFD, file)))
            for rank, found in sorted(found_at_once, key=_stopped):
                self._record_exit(rank, found)
            self._inspect_below(at_once=bool(found_at_once))
            for rank in sorted(unseen):
                found = exit_status(os.P_PID, self._running[rank])
                if found is not ExitStatus.RUNNING:
                    unseen.remove(rank)
                    self._record_exit(rank, found)

    def _record_exit(self, rank: int, found: int | ExitStatus) -> None:
        now = time.monotonic()
        with self._changed:
            code = None if isinstance(found, ExitStatus) else found
            self._exits.append(WorkerExit(rank, self._running[rank], now, code))
        self._forget(rank)

    def _forget(self, rank: int) -> None:
        with self._changed:
            del self._running[rank]
            self._changed.notify_all()


def _stopped(end: tuple[int, int | ExitStatus]) -> tuple[bool, int]:
    """The sort key of workers that were all found dead at once: torch sends SIGTERM to the others when one
    has failed, so one that SIGTERM ended was not the first."""
    rank, found = end
    return found == -signal.SIGTERM, rank


class ExitStatus(Enum):
    """A process that has no exit code to show."""

    RUNNING = "running"
    UNKNOWN = "another thread took its exit status, or it is not a child of this process"


def exit_status(kind: int, number: int) -> int | ExitStatus:
    """A child's exit code, negative for a signal; it is left for the process that waits for the child."""
    try:
        found = os.waitid(kind, number, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except (ChildProcessError, AttributeError):
        return ExitStatus.UNKNOWN
    if found is None:
        return ExitStatus.RUNNING
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
