"""The thread that beats in the round's store and watches the others' beats.

The leader watches everybody, each member watches the leader. Beats have a connection and a thread of
their own (a store call can block for ever), and a broken connection is opened again before anything is
said. What follows from a beat that is missing is decided in ``elasticjob.core.beats``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from elasticjob.core.beats import BEAT_SECONDS, BeatJudge, Loss, Probe
from elasticjob.core.participant import Membership
from elasticjob.stores import Call, KeyValueStore, StoreConnection, StoreGone, connect, probe

logger = logging.getLogger(__name__)

PROBE_SECONDS = 0.5
ANSWER_SECONDS = 0.2
HERE = "elasticjob/here/"
BEAT = "elasticjob/beat/"


class Beats:
    """Beats of one round; ``lost`` is called from the thread with the evidence by rank, once for each loss.

    Ranks that are lost together come together: the first report ends the round, and a second one is late.
    """

    def __init__(
        self, membership: Membership, stall_timeout: float, lost: Callable[[Mapping[int, Loss]], None]
    ) -> None:
        self._membership = membership
        self._leads = membership.rank == 0
        self._lost = lost
        self._stop = threading.Event()
        self._bell = threading.Condition()
        self._connection = self._open()
        self._call: Call[dict[int, int]] | None = None
        self._endpoints: dict[int, str] = {0: membership.leader}
        self._answers = 0
        peers = range(1, membership.size) if self._leads else [0]
        self._judge = BeatJudge(peers, membership.heartbeat_timeout, stall_timeout, time.monotonic())
        self._thread = threading.Thread(target=self._run, name="elasticjob-beats", daemon=True)

    def start(self) -> None:
        """Begin to beat, unless there is nobody else."""
        if self._membership.size > 1:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._connection.close()

    def _open(self) -> StoreConnection:
        return StoreConnection(lambda: connect(self._membership.leader), self._membership.prefix, self._bell)

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + BEAT_SECONDS, time.monotonic())
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            counts = self._exchange()
            suspects = self._judge.tick(time.monotonic(), counts)
            if suspects:
                self._probe(suspects)

    def _exchange(self) -> dict[int, int]:
        """Send the next beat if the one before was answered; the counters that have come in.

        An answer is waited for, for a moment: taken at the next beat it would be a second old.
        """
        counts = self._answer()
        if self._call is None:
            self._call = call = self._connection.submit(self._read_all if self._leads else self._beat)
            with self._bell:
                self._bell.wait_for(lambda: call.done, ANSWER_SECONDS)
            counts |= self._answer()
        return counts

    def _answer(self) -> dict[int, int]:
        """What the call under way has brought, {} while it is not done or when it has failed."""
        call = self._call
        if call is None or not call.done:
            return {}
        self._call = None
        try:
            return call.result()
        except StoreGone as gone:
            logger.debug("beat: %s; opening the connection again", gone)
            self._connection.close()
            self._connection = self._open()
            return {}

    def _beat(self, store: KeyValueStore) -> dict[int, int]:
        """One beat of a member; its answer is the leader's beat."""
        store.add(f"{BEAT}{self._membership.rank}", 1)
        self._answers += 1
        return {0: self._answers}

    def _read_all(self, store: KeyValueStore) -> dict[int, int]:
        """The members' counters, read from the leader's own store (they are there before the barrier)."""
        ranks = range(1, self._membership.size)
        if len(self._endpoints) == 1:
            said = store.multi_get([f"{HERE}{rank}" for rank in ranks])
            self._endpoints.update({rank: text.decode() for rank, text in zip(ranks, said, strict=True)})
        values = store.multi_get([f"{BEAT}{rank}" for rank in ranks])
        return {rank: int(value) for rank, value in zip(ranks, values, strict=True)}

    def _probe(self, suspects: list[int]) -> None:
        endpoints = {rank: self._endpoints[rank] for rank in suspects[:64] if rank in self._endpoints}
        found = probe(endpoints, PROBE_SECONDS)
        now = time.monotonic()
        lost = {}
        for rank, what in found.items():
            if what is not Probe.ACCEPTED:
                logger.debug("rank %d: %s", rank, what.value)
            if self._judge.probed(now, rank, what):
                lost[rank] = self._judge.lost[rank]
        if lost and not self._stop.is_set():
            self._lost(lost)
