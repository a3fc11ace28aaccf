"""The drain of one round on one agent: its workers stop at a step that all ranks share.

Each agent tells its workers to hold at their next call of ``should_stop``. A moment later it knows for each
the last step from which it may have gone on, and puts the first step beyond into the round's store. The
leader takes the highest of all members as the step to stop at. No rank has gone on from it, and every rank
comes to it: those that are held before it are let go, and no rank waits for a collective that another
leaves out. This holds however fast steps are, and however far ranks are apart.

No one waits for a worker that has ended well, because it had fewer batches: it enters no step that others
could miss. If all workers have, training is complete, and the leader reports no stop.

The step is decided once, in the store. An agent that waits too long decides that no step is agreed, and
all go on training until the operator ends the round.

If it takes more than a moment the leader reports which members it waits for, so that the cause of a drain
that hangs can be found.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from elasticjob.core.participant import Membership
from elasticjob.drain.board import ENDED, StopBoard
from elasticjob.store.connect import connect
from elasticjob.store.connection import KeyValueStore, StoreConnection
from elasticjob.store.errors import CannotConnect, StoreGone
from elasticjob.store.missing_keys import missing_ranks
from elasticjob.worker.stopping import HOLD, NOTHING_ASKED

logger = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE_SECONDS = 0.05
"""How long a worker's store to memory may take to be seen; it takes microseconds."""
POLL_SECONDS = 0.05
MEMBERS_PER_POLL = 64
"""Larger rounds poll less often, so that the load of the leader's store stays the same."""
AGREE_SECONDS = 10.0
"""How long the leader holds its workers for a member without a step; a member waits half as long again."""
REPORT_SECONDS = 2.0
"""How long a drain takes before the leader reports which members it waits for, and how often it does so again
if they have changed."""
MAX_REPORTED = 64
"""How many members a report names."""
FIRST_KEY = "elasticjob/drain/first/"
STEP_KEY = "elasticjob/drain/step"
STOPPED_KEY = "elasticjob/drain/stopped/"
NO_STEP = "none"
HAS_STOPPED, HAS_ENDED = "1", "ended"
"""The values of a member's key."""


class Drain:
    """Asks the workers of one agent to stop. ``end_reason`` returns why the round is over, "" before that.

    On the leader, ``stopped`` is called with the step when the workers of all members have stopped, and
    ``waiting`` while it waits for members: with the step, 0 before it is agreed, and their ranks."""

    def __init__(
        self,
        membership: Membership,
        board: StopBoard,
        stopped: Callable[[int], None],
        end_reason: Callable[[], str],
        waiting: Callable[[int, tuple[int, ...]], None] | None = None,
    ) -> None:
        self._m = membership
        self._leads = membership.group_rank == 0
        self._board = board
        self._stopped = stopped
        self._end_reason = end_reason
        self._tell_waiting = waiting
        self._report_at = 0.0
        self._reported: tuple[int, tuple[int, ...]] = (0, ())
        self._decided = False
        self._step: int | None = None
        self._ended = threading.Event()
        self._poll = POLL_SECONDS * max(1.0, membership.size / MEMBERS_PER_POLL)
        self._connection: StoreConnection | None = None
        self._thread = threading.Thread(target=self._run, name="elasticjob-drain", daemon=True)
        self._start_lock = threading.Lock()
        self._started = False

    def start(self) -> None:
        """Begin, once."""
        with self._start_lock:
            if self._started or self._ended.is_set():
                return
            self._started = True
            self._thread.start()

    def replacing(self, on: bool) -> None:
        """Let the preStop hook know whether the round goes on until the replacements of members that leave
        have joined.

        Does nothing once the drain has begun: the hook would end if it found neither file for a moment."""
        with self._start_lock:
            if not self._started:
                self._board.replacing(on)

    def close(self) -> None:
        """The round is over for this agent."""
        with self._start_lock:
            self._ended.set()
        if self._connection is not None:
            self._connection.close()
        self._board.close()

    def _run(self) -> None:
        try:
            self._until_done()
        except StoreGone as gone:
            logger.debug("round %d: the drain ends: %s", self._m.number, gone)
        finally:
            if self._connection is not None:
                self._connection.close()

    def _until_done(self) -> None:
        """Drain, and retry after any error: all that is written or asked is idempotent. Workers are held no
        longer than the other members wait. Raises StoreGone when the round is over."""
        level, deadline = logging.WARNING, time.monotonic() + 1.5 * AGREE_SECONDS
        while True:
            try:
                self._drain()
                return
            except StoreGone:
                raise
            except Exception:
                logger.log(level, "round %d: its drain fails; trying again", self._m.number, exc_info=True)
                level = logging.DEBUG
            if not self._decided and time.monotonic() > deadline:
                self._board.ask(NOTHING_ASKED)
                logger.warning("round %d: the drain is given up: training goes on", self._m.number)
                return
            self._pause()

    def _drain(self) -> None:
        m = self._m
        if not self._decided and not self._hold():
            return
        step = self._step
        if step is None:
            return
        keys = [f"{STOPPED_KEY}{rank}" for rank in range(m.size)]
        while (at := self._board.stopped_at()) is None:
            self._report_waiting(step, keys)
            self._pause()
        if at == ENDED:
            logger.info("round %d: all local workers have ended well, before step %d", m.number, step)
        else:
            logger.info("round %d: all local workers have stopped at step %d", m.number, at)
        if self._connection is not None:
            said = HAS_ENDED if at == ENDED else HAS_STOPPED
            self._call(lambda store: store.set(f"{STOPPED_KEY}{m.group_rank}", said))
        if self._leads:
            while not self._there(keys):
                self._report_waiting(step, keys)
                self._pause()
            if at != ENDED or self._others_have_stopped(keys):
                self._stopped(max(step, at))  # they may call should_stop every hundred steps

    def _hold(self) -> bool:
        """Hold the workers until the members have agreed on a step, or to go on training. False if not all
        workers take part."""
        m = self._m
        if not self._board.take_part():
            logger.warning("round %d drains, but not all local workers have called should_stop", m.number)
            return False
        if not self._report_at:
            logger.info("round %d drains: its workers agree on a step to stop at", m.number)
            self._report_at = time.monotonic() + REPORT_SECONDS
        if m.size > 1 and self._connection is None:
            self._connection = self._open()
        self._board.ask(HOLD)
        time.sleep(SETTLE_SECONDS)
        step = self._agree(self._first())
        self._step, self._decided = step, True
        self._board.ask(NOTHING_ASKED if step is None else step + 1)
        if step is None:
            logger.warning("round %d: the members did not agree on a step to stop at", m.number)
        else:
            logger.info("round %d: workers stop at step %d, unless they end before it", m.number, step)
        return True

    def _others_have_stopped(self, keys: list[str]) -> bool:
        """Whether one of the members has workers that have stopped, and not ended."""
        if self._connection is None:
            return False
        said = self._call(lambda store: store.multi_get(keys))
        return any(bytes(one).decode() == HAS_STOPPED for one in said)

    def _first(self) -> int | None:
        """The first step from which no local worker has gone on; None if a worker's step stays unknown."""
        deadline = time.monotonic() + AGREE_SECONDS
        while (first := self._board.first_possible_step()) is None and time.monotonic() < deadline:
            self._pause()
        return first

    def _agree(self, first: int | None) -> int | None:
        """The step at which all stop; None if the members go on training."""
        m = self._m
        if self._connection is None:
            return first
        if first is not None:
            self._call(lambda store: store.set(f"{FIRST_KEY}{m.group_rank}", str(first)))
        keys = [f"{FIRST_KEY}{rank}" for rank in range(m.size)] if self._leads else [STEP_KEY]
        limit = AGREE_SECONDS if self._leads else 1.5 * AGREE_SECONDS
        deadline = time.monotonic() + limit
        while not (there := self._there(keys)) and time.monotonic() < deadline:
            self._report_waiting(0, keys)
            self._pause()
        proposal = NO_STEP
        if there and self._leads:
            values = self._call(lambda store: store.multi_get(keys))
            proposal = str(max(int(value) for value in values))
        # The first proposal is the decision. Where there is one already, this only reads it.
        decided = bytes(self._call(lambda store: store.compare_set(STEP_KEY, "", proposal))).decode()
        return None if decided == NO_STEP else int(decided)

    def _report_waiting(self, step: int, keys: Sequence[str]) -> None:
        """Report now and then, on the leader, which members have not set their key."""
        if not self._leads or self._tell_waiting is None or time.monotonic() < self._report_at:
            return
        waiting = step, self._missing(keys)
        if waiting != self._reported and waiting[1]:
            self._reported = waiting
            self._tell_waiting(*waiting)
        self._report_at = time.monotonic() + REPORT_SECONDS

    def _missing(self, keys: Sequence[str]) -> tuple[int, ...]:
        """The ranks whose key is missing, as many as a report names; ``keys`` are those of all members."""
        if self._connection is None:
            return (0,)
        return tuple(missing_ranks(self._there, keys, MAX_REPORTED))[:MAX_REPORTED]

    def _there(self, keys: list[str]) -> bool:
        return self._connection is None or bool(self._call(lambda store: store.check(keys)))

    def _call(self, work: Callable[[KeyValueStore], T]) -> T:
        """Call the store, and retry when the connection breaks: all calls are idempotent. Raises StoreGone
        when the round is over."""
        assert self._connection is not None
        while True:
            try:
                return self._connection.call(work, self._why_ended)
            except (StoreGone, CannotConnect) as gone:
                logger.debug("round %d: the drain's connection: %s", self._m.number, gone)
                self._connection.close()
            self._pause()
            self._connection = self._open()

    def _open(self) -> StoreConnection:
        return StoreConnection(
            lambda: connect(self._m.leader_endpoint), self._m.prefix, threading.Condition()
        )

    def _why_ended(self) -> str:
        return "the round is over for this agent" if self._ended.is_set() else self._end_reason()

    def _pause(self) -> None:
        """Raises StoreGone when the round is over."""
        self._ended.wait(self._poll)
        why = self._why_ended()
        if why:
            raise StoreGone(why)
