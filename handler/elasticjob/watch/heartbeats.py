"""The heartbeat thread: it sends this agent's heartbeats through the round's store and watches those of
others.

The leader watches all members, each member watches the leader. Heartbeats have a connection and a thread of
their own, because a store call can block for ever. A broken connection is reopened before anything is
reported. ``elasticjob.core.heartbeats`` decides what follows from a missing heartbeat.

With its heartbeat, a member stores the highest step that its workers report, if it has changed, and the flags
that it raises (``MemberFlag``). The leader passes the steps of all members to
``elasticjob.core.progress``. In a round of one member there are no heartbeats, and only the steps are read.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

from torch.distributed import PrefixStore

from elasticjob.contract.reports import ProgressReport, RoundReport
from elasticjob.core.heartbeats import HeartbeatMonitor, Loss, ProbeResult
from elasticjob.core.participant import Membership
from elasticjob.core.progress import ProgressMonitor
from elasticjob.store.connect import connect
from elasticjob.store.connection import KeyValueStore, StoreCall, StoreConnection
from elasticjob.store.errors import CannotConnect, StoreGone
from elasticjob.store.probe import probe
from elasticjob.watch.member_flags import MemberFlag
from elasticjob.watch.step_files import StepReader

logger = logging.getLogger(__name__)

PROBE_SECONDS = 0.5
MAX_PROBED = 64
"""How many ports are probed at once: each is an open file. The others follow a second later."""
ANSWER_SECONDS = 0.2
ENDPOINT_KEY = "elasticjob/here/"
HEARTBEAT_KEY = "elasticjob/beat/"
STEP_KEY = "elasticjob/step/"
TAKES_PART_KEY = "elasticjob/drain/part/"
FENCED_KEY = "elasticjob/fenced/"
PREPARED_KEY = "elasticjob/warm/prepared/"
NO_STEP = -1
LEADER_LEFT = 1 << 40
"""A heartbeat counter of this value was set by the leader when it left the round."""
CONFIRM_SECONDS = 2.0, 4.0
"""The record has the reason within a second. A random time, so that not all members reopen their watches at
once."""


class Answer(NamedTuple):
    """What the store has answered; all but ``counts`` on the leader only."""

    counts: dict[int, int]
    """The heartbeat counters, by rank."""
    steps: Mapping[int, int] | None = None
    """The highest step of each other member, by rank; None while that is unknown."""
    raised: frozenset[str] = frozenset()
    """The keys of the flags that all others have raised."""
    missing: Mapping[str, list[int]] = {}
    """By key, the ranks that have not raised a flag although others have for long."""


class Listener(Protocol):
    """Hears what the heartbeat thread finds, in that thread."""

    def lost(self, found: Mapping[int, Loss], /) -> None:
        """Members are lost: the evidence by rank, once for each loss. Ranks that are lost together come
        together: the first report ends the round, and a second one is late."""

    def looked(self) -> None:
        """The steps were read; ``progressed`` and ``judged`` follow. The leader only, with each look."""

    def progressed(self, report: ProgressReport, first: bool, /) -> None:
        """A step was reported, perhaps the round's ``first``. The leader only."""

    def judged(self, report: RoundReport, /) -> None:
        """The steps speak against the round: none has changed for too long. The leader only, and once."""

    def verify_source(self, since: float, /) -> None:
        """Others are silent, or the leader has left the round, ``since`` then (monotonic seconds): the record
        should have the reason by now."""


class Heartbeats:
    """Heartbeats, steps and flags of one round."""

    def __init__(
        self,
        membership: Membership,
        steps: StepReader,
        listener: Listener,
        flags: Sequence[MemberFlag] = (),
    ) -> None:
        self._membership = membership
        self._leads = membership.group_rank == 0
        self._steps = steps
        self._listener = listener
        self._flags = flags
        self._unconfirmed_since: float | None = None
        self._confirm_seconds = random.uniform(*CONFIRM_SECONDS)
        self._leader_left = self._knows_leader_left = False
        self._warned = False
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._connection = self._open()
        self._call: StoreCall[Answer] | None = None
        self._endpoints: dict[int, str] = {0: membership.leader_endpoint}
        self._answers = 0
        peers = range(1, membership.size) if self._leads else [0]
        now = time.monotonic()
        self._monitor = HeartbeatMonitor(peers, membership.limits, now)
        self._progress_lock = threading.Lock()
        self._progress = ProgressMonitor(membership.nonce, now, membership.limits)
        self._own_step = self._stored_step = NO_STEP
        self._thread = threading.Thread(target=self._run, name="elasticjob-heartbeats", daemon=True)

    def start(self) -> None:
        """Begin to send heartbeats, or only to read the steps in a round of one."""
        self._thread.start()

    def progress(self) -> ProgressReport | None:
        """How far training is at this moment; None before the first step.

        The leader knows the steps of all members, the others those of their own workers, which matter if the
        leader is lost.
        """
        with self._progress_lock:
            self._progress.update(time.monotonic(), self._steps.read(), {})
            return self._progress.report

    def leave(self) -> None:
        """End the thread."""
        self._stop.set()

    def tell_left(self) -> None:
        """Let the leader tell the members that still send heartbeats that it has left the round.

        Its store answers them for as long as it waits for the next round. A member that has not heard of the
        end, because its watch is dead, would send heartbeats there and believe that the round still runs.
        """
        if not self._leads or self._membership.size == 1:
            return
        threading.Thread(target=self._mark_left, name="elasticjob-leaving", daemon=True).start()

    def _mark_left(self) -> None:
        # By a connection of its own: the heartbeat thread closes its own as it ends, and may be replacing it.
        m = self._membership
        heartbeats = [f"{HEARTBEAT_KEY}{rank}" for rank in range(1, m.size)]
        try:
            store = cast(KeyValueStore, PrefixStore(m.prefix, connect(m.leader_endpoint)))
            store.multi_set(heartbeats, [str(LEADER_LEFT)] * len(heartbeats))
            # ``multi_set`` waits for no answer: a connection that is closed at once may lose it.
            store.get(heartbeats[-1])
        except Exception as error:  # noqa: BLE001 - members learn it from the record
            logger.debug("cannot tell the other members that the leader has left the round: %s", error)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._connection.close()

    def watched(self) -> dict[int, str]:
        """The ports of the watched members, by rank, as far as they are known."""
        own = self._membership.group_rank
        return {rank: endpoint for rank, endpoint in self._endpoints.items() if rank != own}

    def _open(self) -> StoreConnection:
        return StoreConnection(
            lambda: connect(self._membership.leader_endpoint), self._membership.prefix, self._changed
        )

    def _run(self) -> None:
        try:
            self._repeat()
        finally:
            self._connection.close()  # one that was opened while ``stop`` closed the one before

    def _repeat(self) -> None:
        due, early = time.monotonic(), float("inf")
        while True:
            due = max(min(due + self._membership.limits.heartbeat_period, early), time.monotonic())
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            early = float("inf")
            try:
                self._once()
                early = self._monitor.next_look()
            except Exception:  # without this thread there are no heartbeats, and no loss is noticed
                logger.debug("a heartbeat failed; retrying", exc_info=True)

    def _once(self) -> None:
        if not self._leads:
            self._guarded(self._read_own_step)
        for flag in self._flags:
            self._guarded(flag.update)
        if self._membership.size > 1:
            answer = self._exchange()
        else:
            answer = Answer({}, {}, frozenset(flag.key for flag in self._flags if flag.raised))
        if self._leads:
            for flag in self._flags:
                if flag.due and flag.key in answer.raised:
                    flag.done = True
                    self._guarded(flag.on_all)
                if flag.on_few is not None and flag.key in answer.missing and not flag.done:
                    on_few, flag.on_few = flag.on_few, None
                    self._guarded(partial(on_few, answer.missing[flag.key]))
            self._guarded(lambda: self._follow_progress(answer))
        now = time.monotonic()
        suspects = self._monitor.tick(now, answer.counts)
        self._check_unconfirmed(now, bool(suspects))
        if suspects:
            self._probe(suspects)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do work that heartbeats and losses do not depend on: log what it raises."""
        try:
            work()
        except Exception:
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            logger.log(level, "steps, drains and hangs may not be told", exc_info=True)

    def _read_own_step(self) -> None:
        own = self._steps.read()
        self._own_step = NO_STEP if own is None else own.step

    def _check_unconfirmed(self, now: float, suspicious: bool) -> None:
        if self._leader_left and not self._knows_leader_left:
            # News: what a watch has brought during an earlier suspicion does not answer it.
            self._knows_leader_left = True
            self._unconfirmed_since = now
        elif not suspicious and not self._leader_left:
            self._unconfirmed_since = None
        elif self._unconfirmed_since is None:
            self._unconfirmed_since = now
        elif now - self._unconfirmed_since > self._confirm_seconds and not self._stop.is_set():
            since = self._unconfirmed_since
            self._guarded(lambda: self._listener.verify_source(since))

    def _follow_progress(self, others: Answer) -> None:
        """Judge the steps, on the leader, and report what is new."""
        with self._progress_lock:
            before = self._progress.report
            against = self._progress.tick(time.monotonic(), self._steps.read(), others.steps)
            report = self._progress.report
        if self._stop.is_set():
            return
        self._listener.looked()
        if report is not None and report != before:
            self._listener.progressed(report, before is None)
        if against is not None:
            self._listener.judged(against)

    def _exchange(self) -> Answer:
        """Send the next heartbeat if the one before was answered; return what has come in.

        It waits for the answer for a moment: read at the next heartbeat, it would be a second old.
        """
        before = self._answer()
        if self._call is None:
            self._call = call = self._connection.submit(
                self._read_all if self._leads else self._send_heartbeat
            )
            with self._changed:
                self._changed.wait_for(lambda: call.done, ANSWER_SECONDS)
            after = self._answer()
            steps = before.steps if after.steps is None else after.steps
            counts, raised = before.counts | after.counts, before.raised | after.raised
            return Answer(counts, steps, raised, {**before.missing, **after.missing})
        return before

    def _answer(self) -> Answer:
        """The result of the call under way; empty while it is not done, or if it has failed."""
        call = self._call
        if call is None or not call.done:
            return Answer({})
        self._call = None
        try:
            return call.result()
        except (StoreGone, CannotConnect) as gone:
            logger.debug("heartbeat: %s; reconnecting", gone)
            self._connection.close()
            self._connection = self._open()
            return Answer({})

    def _send_heartbeat(self, store: KeyValueStore) -> Answer:
        """One heartbeat of a member; its answer is the leader's heartbeat."""
        rank, step = self._membership.group_rank, self._own_step
        self._leader_left = store.add(f"{HEARTBEAT_KEY}{rank}", 1) > LEADER_LEFT
        if step != self._stored_step:
            store.set(f"{STEP_KEY}{rank}", str(step))
            self._stored_step = step
        for flag in self._flags:
            if flag.due:
                flag.store(store, rank)
        self._answers += 1
        return Answer({0: self._answers})

    def _read_all(self, store: KeyValueStore) -> Answer:
        """The members' counters and steps, read from the leader's own store (they are there before the
        barrier)."""
        ranks = range(1, self._membership.size)
        if len(self._endpoints) == 1:
            endpoints = store.multi_get([f"{ENDPOINT_KEY}{rank}" for rank in ranks])
            self._endpoints.update({rank: text.decode() for rank, text in zip(ranks, endpoints, strict=True)})
        values = store.multi_get([f"{key}{rank}" for key in (HEARTBEAT_KEY, STEP_KEY) for rank in ranks])
        counts = {rank: int(value) for rank, value in zip(ranks, values[: len(ranks)], strict=True)}
        raised = frozenset(flag.key for flag in self._flags if flag.due and flag.raised_by(store, ranks))
        missing = {flag.key: few for flag in self._flags if (few := flag.missing(store, ranks))}
        steps = {rank: int(value) for rank, value in zip(ranks, values[len(ranks) :], strict=True)}
        return Answer(counts, steps, raised, missing)

    def _probe(self, suspects: list[int]) -> None:
        endpoints = {rank: self._endpoints[rank] for rank in suspects[:MAX_PROBED] if rank in self._endpoints}
        found = probe(endpoints, PROBE_SECONDS)
        now = time.monotonic()
        lost = {}
        for rank, what in found.items():
            if what is not ProbeResult.ACCEPTED:
                logger.debug("group rank %d: %s", rank, what.value)
            if self._monitor.record_probe(now, rank, what):
                lost[rank] = self._monitor.lost[rank]
        if lost and not self._stop.is_set():
            self._listener.lost(lost)
