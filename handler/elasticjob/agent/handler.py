"""torch's ``RendezvousHandler`` over the Kubernetes API: what torchrun's main thread calls.

It calls ``next_rendezvous`` once for each round, ``num_nodes_waiting`` ten times a second, and ``shutdown``
several times or never. ``joining`` announces the agent and waits for a round, ``in_round`` enters and leaves
it, ``active_round`` is the one that it is in. ``elasticjob.core`` decides. ``SignalException`` is an
``Exception``, so nothing here catches broadly in the main thread.
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStateError

from elasticjob.agent.in_round import InRound, set_worker_environment, use_agent_store
from elasticjob.agent.joining import Joining
from elasticjob.agent.long_lived_parts import LongLivedParts, OpenSource, log_failure
from elasticjob.agent.settings import Settings
from elasticjob.api.leases import LeaseApi
from elasticjob.contract import names
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.join_time import JoinTime
from elasticjob.core.participant import Stop
from elasticjob.rounds.causes import Cause
from elasticjob.warm import early_start
from elasticjob.workers.torch_agent import calling_agent, final_failures

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class K8sRendezvousHandler(RendezvousHandler):
    """One agent's part in the rounds of one ElasticJob. ``open_api`` gives a fresh ``LeaseApi``; ``ended`` is
    called when it was shut down. ``open_source`` gives the source of round records, which calls its argument;
    by default the round Lease is watched."""

    def __init__(
        self,
        settings: Settings,
        run_id: str,
        open_api: Callable[[], LeaseApi],
        ended: Callable[[], None] = lambda: None,
        open_source: OpenSource | None = None,
    ) -> None:
        self._run_id = run_id
        self._ended = ended
        self._shut = False
        self._parts = LongLivedParts(settings, open_api, self._observed, self._unpublished, open_source)
        self._core, self._warm = self._parts.core, self._parts.warm
        self._rounds = InRound(self._parts)
        self._joining = Joining(self._parts, self._rounds)
        if settings.peers:
            atexit.register(self._end_without_success)
        if self._warm is not None:
            self._warm.install()
        else:
            early_start.end()

    def get_backend(self) -> str:
        """The name of the backend."""
        return names.BACKEND

    def get_run_id(self) -> str:
        """The value of ``--rdzv-id``."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether the leader's agent serves the store of the workers."""
        return use_agent_store()

    def is_closed(self) -> bool:
        """Whether the job is over."""
        return isinstance(self._core.next_action(), Stop)

    def set_closed(self) -> None:
        """Only the operator closes a job (I8): nothing happens."""

    def num_nodes_waiting(self) -> int:
        """1 if the record says that this round is over, else 0; reads memory only.

        Waits for the workers' stacks to be written if the round is over because it hung: whenever torch asks,
        all of them live, and it stops them only after this.
        """
        active, terminator = self._rounds.active, self._rounds.terminator
        if active is None:
            return 0
        active.workers.mark_healthy()
        if self._core.end_reason():
            active.workers.mark_stopping()
            with log_failure("the stacks of the workers are not written"):
                terminator.dump()
            with log_failure("workers that do not stop are not killed"):
                terminator.kill_in_time()
            return 1
        return 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and return when all its members are there.

        Raises RendezvousClosedError when the job has failed, SystemExit(0) when it is complete,
        RendezvousStateError when another process of this pod has taken over, rights are missing or it was
        shut down, RendezvousConnectionError if this process can connect to no one, and RendezvousTimeoutError
        after ``join_timeout`` seconds in which no round of others ran.
        """
        if self._shut:
            raise RendezvousStateError("this handler was shut down and joins no more rounds")
        with self._signals():
            call = calling_agent(sys._getframe(1))
            if self._warm is not None:
                set_worker_environment()
                with log_failure("the next workers start cold"):
                    self._warm.arm(call.agent)
            failure = self._rounds.leave(call.failures)
            limit = JoinTime(self._parts.settings.join_timeout or float("inf"), time.monotonic())
            try:
                while True:
                    membership = self._joining.wait_for_round(call.agent, limit, failure)
                    failure = None
                    info = self._rounds.establish(membership, call.agent)
                    if info is not None:
                        return info
            except SignalException:
                self._parts.write_leaving()
                raise

    def shutdown(self) -> bool:
        """Let the others pass the exit barrier, leave; closes nothing, never raises but for a signal."""
        if self._shut:
            return True
        self._shut = True
        self._rounds.end(final_failures(sys.exc_info()[1]))
        self._end_without_success()
        self._stop_threads()
        if self._warm is not None:
            self._warm.close()
        if self._parts.memory is not None:
            self._parts.memory.close()
        self._parts.servers.close()
        self._rounds.remove_files()
        self._ended()
        return True

    def _end_without_success(self) -> None:
        """Say that this agent ends, unless it has said that it has succeeded. torch does not shut down what
        ends on a signal. An operator sees how the pod ends; without one only this is certain."""
        atexit.unregister(self._end_without_success)
        if self._parts.settings.peers:
            with log_failure("other pods may wait for this one"):
                self._parts.write_leaving()

    def _stop_threads(self) -> None:
        self._rounds.close()
        self._parts.source.stop()
        self._parts.lease.stop()

    # -- from the thread that watches the round's record ---------------------------------------------------

    def _observed(self, record: RoundRecord) -> None:
        """Take in a record of the round, and act if the active round drains or is over."""
        parts, terminator = self._parts, self._rounds.terminator
        with parts.changed:
            if not parts.core.observe(record):
                return
            active, over = self._rounds.active, bool(parts.core.end_reason())
            out_of_memory = record.out_of_memory or record.cause == Cause.OUT_OF_MEMORY
            drains, replaces = parts.core.drain_asked(), parts.core.replaces()
            parts.changed.notify_all()
        if out_of_memory and parts.warm is not None:
            with log_failure("later workers may start warm"):
                parts.warm.out_of_memory("a container of this job")
        if out_of_memory and parts.memory is not None:
            parts.memory.out_of_memory("a container of this job")
        if drains and record.memory_alone and parts.memory is not None:
            parts.memory.all_stay(record.number)
        if active is not None and drains:
            with log_failure("the round does not drain here"):
                active.drain.start()
        if active is not None and not over:
            active.drain.replacing(replaces)
        if active is not None and over:
            active.workers.round_ended()
            with log_failure("the stacks of the workers may be missing"):
                terminator.freeze()
            with log_failure("workers that do not stop may not be killed"):
                terminator.kill_in_time()

    def _unpublished(self) -> None:
        """The record was deleted, most likely with its job."""
        with self._parts.changed:
            self._core.unpublish()
            active = self._rounds.active
        if active is not None:
            active.drain.replacing(False)

    # -- signals -------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signal handlers of our own where torch has none yet (it installs its own with the first workers).

        As PID 1 a process without a handler never sees SIGTERM at all.
        """
        previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                current = signal.getsignal(number)
                if current in (signal.SIG_DFL, signal.default_int_handler):
                    previous[number] = signal.signal(number, self._terminate)
        try:
            yield
        finally:
            for number, old in previous.items():
                signal.signal(number, old)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._parts.write_leaving()
        raise SystemExit(128 + number)
