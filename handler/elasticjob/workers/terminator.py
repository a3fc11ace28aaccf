"""Ends a round's workers where torch does not: in time, and after their stacks were written if they hung.

torch stops the workers when it next calls ``num_nodes_waiting``, and gives them any amount of time. The next
round waits for all of them, so those that are left after a while are killed.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable

from elasticjob.core.participant import Participant
from elasticjob.workers import processes
from elasticjob.workers.failures import RoundWorkers
from elasticjob.workers.stack_dump import StackDump
from elasticjob.workers.torch_agent import AgentWorker

logger = logging.getLogger(__name__)

DUMP_SECONDS = 2.0
"""How long torch has to ask before the stacks of a hung round are written without it."""
AGAIN_SECONDS = 0.5
"""When it is tried again, if the workers are not there yet or this process is short of descriptors."""


class WorkerTerminator:
    """Sees to it that the workers of a round that is over end within ``grace_seconds`` seconds.

    ``workers`` returns the active round's workers, None between two rounds. Only workers that torch's agent
    lists are signalled.
    """

    def __init__(
        self, core: Participant, grace_seconds: float, workers: Callable[[], RoundWorkers | None]
    ) -> None:
        self._core = core
        self._grace_seconds = grace_seconds
        self._workers = workers
        self._stacks = StackDump()
        self._terminating = 0

    def freeze(self) -> None:
        """If the round hung: stop the workers where they are, for their stacks.

        The stacks are written when torch next asks whether nodes are waiting. If that takes too long (a long
        ``--monitor-interval``), it is done here, and torch takes it for a failure.
        """
        m, workers = self._core.membership, self._workers()
        if m is None or workers is None or not self._core.round_hung():
            return
        self._stacks.freeze(m.number, workers.listed(), lambda: self._hung_in(workers))

        def dump() -> None:
            if self._hung_in(workers):
                workers.mark_stopping()
            self._stacks.dump()

        _later(DUMP_SECONDS, dump)

    def dump(self) -> None:
        """Let the workers of a round that hung write their stacks and end. Called in the main thread."""
        m, workers = self._core.membership, self._workers()
        if m is not None and workers is not None and self._core.round_hung():
            self._stacks.freeze(m.number, workers.listed(), lambda: True)
            self._stacks.dump()

    def kill_in_time(self) -> None:
        """The round is over: if torch has not come back in time, kill what is left of its workers."""
        m, workers = self._core.membership, self._workers()
        if m is None or workers is None or self._terminating == m.number:
            return

        def kill() -> None:
            level = logging.WARNING
            while self._workers() is workers:
                try:
                    if self._kill_all(m.number, workers):
                        return
                except OSError as error:
                    logger.debug("cannot kill the workers; retrying: %s", error)
                except Exception:  # the next round waits for the end of all of them
                    logger.log(level, "cannot kill the workers; retrying", exc_info=True)
                    level = logging.DEBUG
                time.sleep(AGAIN_SECONDS)

        _later(self._grace_seconds, kill)
        self._terminating = m.number

    def _kill_all(self, number: int, workers: RoundWorkers) -> bool:
        """Whether the workers are there, and those that were left have been killed. Raises OSError."""
        listed = workers.listed()
        if not listed:
            return False
        workers.mark_stopping()
        self._stacks.dump()
        killed = [one for one in listed if _kill(one)]
        if killed:
            logger.warning(
                "round %d is over, but its workers did not stop: killed %s",
                number,
                ", ".join(f"rank {one.rank} (pid {one.pid})" for one in killed),
            )
        return True

    def _hung_in(self, workers: RoundWorkers) -> bool:
        return self._workers() is workers and self._core.round_hung()


def _kill(worker: AgentWorker) -> bool:
    """Kill it and its process group, if it still runs. Raises OSError."""
    one = processes.find(worker.pid)
    running = one is not None and one.alive
    return running and processes.send(worker.pid, worker.born, signal.SIGKILL, group=True)


def _later(seconds: float, what: Callable[[], None]) -> None:
    """Do it in a thread of its own."""

    def run() -> None:
        try:
            what()
        except Exception:
            logger.warning("the workers of a round that is over may not be ended", exc_info=True)

    timer = threading.Timer(seconds, run)
    timer.daemon = True
    timer.start()
