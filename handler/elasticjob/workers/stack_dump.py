"""Writes the stacks of hanging workers to the pod's log before anything ends the workers (Linux).

Workers are started with PYTHONFAULTHANDLER=1, so Python itself writes the stacks of all threads to stderr on
SIGABRT: in the signal handler, in C, without the interpreter's lock, and also while the main thread blocks in
a collective. The signal is sent only to processes that handle it. It also ends them, as intended.

The first process that ends breaks the connections of its peers on other nodes, whose stacks would then no
longer show where they hung. So each agent stops its workers (SIGSTOP) as soon as it sees the record, and
dumps only when all other agents have had the time to do the same. Dumps come one after the other, because
they share a log.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from elasticjob.workers import processes
from elasticjob.workers.torch_agent import AgentWorker

if sys.platform == "linux":
    import resource

logger = logging.getLogger(__name__)

FAULTHANDLER_ENV = "PYTHONFAULTHANDLER"
FREEZE_SECONDS = 0.5
"""The pause before the first dump, in which the record reaches all other agents."""
ONE_SECONDS, ALL_SECONDS = 2.0, 5.0
"""How long to wait until a worker, and until all workers, have written their stacks and ended."""
POLL_SECONDS = 0.01


class Worker:
    """One of the agent's workers, with the ranks that the agent gave it."""

    def __init__(self, worker: AgentWorker) -> None:
        self.pid, self._born = worker.pid, worker.born
        self.text = f"rank {worker.rank} (local rank {worker.local_rank}, pid {worker.pid})"
        self.file = processes.error_file(worker.pid)

    def alive(self) -> bool:
        """Whether it is still there, and still the same process."""
        one = processes.find(self.pid)
        return one is not None and one.alive and one.born == self._born

    def signal(self, *numbers: signal.Signals) -> None:
        """Send it signals, if it is still there."""
        for number in numbers:
            with contextlib.suppress(OSError):
                processes.send(self.pid, self._born, number)


class StackDump:
    """The dumps of one agent, one for each round that hung. ``freeze`` and ``dump`` come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._frozen: list[Worker] = []
        self._since = 0.0

    def freeze(self, number: int, workers: Sequence[AgentWorker], still: Callable[[], bool]) -> None:
        """Stop the workers, once for the round ``number``; ``still`` returns whether it is still this round.
        Raises OSError if this process has no descriptors left."""
        with self._lock:
            if self._number == number or not workers or sys.platform != "linux":
                return
            found = [Worker(one) for one in workers if _dumps(one.pid)]
            if not still():
                return
            self._number, self._frozen, self._since = number, found, time.monotonic()
            for worker in found:
                worker.signal(signal.SIGSTOP)

    def dump(self) -> None:
        """Let the workers that are stopped write their stacks, and end; returns when they have."""
        with self._lock:
            workers, self._frozen = self._frozen, []
            try:
                if workers:
                    time.sleep(max(0.0, self._since + FREEZE_SECONDS - time.monotonic()))
                deadline = time.monotonic() + ALL_SECONDS
                for worker in workers:
                    self._dump_one(worker, min(deadline, time.monotonic() + ONE_SECONDS))
            finally:
                for worker in workers:
                    worker.signal(signal.SIGCONT)

    def _dump_one(self, worker: Worker, deadline: float) -> None:
        if not worker.alive():
            return
        if not _forbid_core(worker.pid):
            logger.warning("not dumping the stack of %s: a core file could not be prevented", worker.text)
            return
        where = f" is in {worker.file}" if worker.file else ":"
        logger.warning("round %d hung; the stack of %s%s", self._number, worker.text, where)
        worker.signal(signal.SIGABRT, signal.SIGCONT)
        while worker.alive() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if worker.alive():
            logger.warning("%s did not write its stack in time", worker.text)


def _dumps(pid: int) -> bool:
    """Whether it leads its process group (torch starts each script so) and does something at SIGABRT
    (faulthandler's dump, or what its user chose)."""
    one = processes.find(pid)
    if one is None or one.group != pid:
        return False
    for line in processes.read(pid, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGABRT - 1) & 1)
    return False


def _forbid_core(pid: int) -> bool:
    """Limit its core file to one byte: the kernel takes this for none, also where cores go to a program (it
    does not regard a limit of 0 there). Whether that went well."""
    if sys.platform == "linux":
        try:
            hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
            limit = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
            resource.prlimit(pid, resource.RLIMIT_CORE, (limit, hard))
        except ProcessLookupError:
            return True
        except OSError:
            return False
    return True
