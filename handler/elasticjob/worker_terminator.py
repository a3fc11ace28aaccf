"""Ends a round's workers where torch does not: in time, and after their stacks were written if they hung.

torch stops the workers when it next calls ``num_nodes_waiting``, and gives them any amount of time. The next
round waits for all of them, so those that are left after a while are killed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from elasticjob.core.participant import Participant
from elasticjob.stack_dump import StackDump
from elasticjob.worker_failures import RoundWorkers
from elasticjob.workers import WorkerProcesses, kill_process_groups

logger = logging.getLogger(__name__)

DUMP_SECONDS = 2.0
"""How long torch has to ask before the stacks of a hung round are written without it."""
LIST_AGAIN_SECONDS = 0.5


class WorkerTerminator:
    """Sees to it that the workers of a round that is over end within ``grace_seconds`` seconds.

    ``workers`` tells what is known of the workers, None while this agent is in no round; ``processes`` which
    they may be.
    """

    def __init__(
        self,
        core: Participant,
        grace_seconds: float,
        workers: Callable[[], RoundWorkers | None],
        processes: WorkerProcesses,
    ) -> None:
        self._core = core
        self._grace_seconds = grace_seconds
        self._workers = workers
        self._processes = processes
        self._stacks = StackDump(processes)
        self._terminating = 0

    def freeze(self) -> None:
        """If the round hung: stop the workers where they are, for their stacks.

        The stacks are written when torch next asks whether nodes are waiting. If that takes too long (a long
        ``--monitor-interval``), it is done here, and torch takes it for a failure.
        """
        m = self._core.membership
        if m is None or not self._core.round_hung():
            return
        self._stacks.freeze(m.number, lambda: self._workers() is not None and self._core.round_hung())

        def dump() -> None:
            if self._core.round_hung():
                self._mark_stopping()
            self._stacks.dump()

        _later(DUMP_SECONDS, dump)

    def dump(self) -> None:
        """In the main thread: if the round hung, let the workers write their stacks and end."""
        m = self._core.membership
        if m is not None and self._core.round_hung():
            self._stacks.freeze(m.number, lambda: True)
            self._stacks.dump()

    def kill_in_time(self) -> None:
        """The round is over: if torch has not come back in time, kill what is left of its workers."""
        m = self._core.membership
        if m is None or self._terminating == m.number:
            return
        self._terminating = m.number

        def kill() -> None:
            # First the list, then the question: if this is still the round, none listed is of a newer one.
            try:
                pids = self._processes.pids()
            except OSError as error:
                logger.debug("cannot list the workers; retrying: %s", error)
                if self._workers() is not None:
                    _later(LIST_AGAIN_SECONDS, kill)
                return
            still = self._core.membership
            if self._workers() is not None and still is not None and still.number == m.number:
                self._mark_stopping()
                self._stacks.dump()
                killed = kill_process_groups(pids)
                if killed:
                    logger.warning(
                        "round %d is over, but its workers did not stop: killed process groups %s",
                        m.number,
                        killed,
                    )

        _later(self._grace_seconds, kill)

    def _mark_stopping(self) -> None:
        workers = self._workers()
        if workers is not None:
            workers.mark_stopping()


def _later(seconds: float, what: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()
