"""Probes the members of a round that has ended, to find those that are gone.

A machine that dies breaks its peers' collectives. Their workers fail, the round ends and with it the
heartbeats, before the dead member's silence is noticed. So the agents that watched it keep
probing it while they wait for the next round. A live agent keeps its port open until a later round is
established, and accepts connections even while it is busy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from elasticjob.contract.limits import Limits
from elasticjob.core.heartbeats import HeartbeatMonitor, Loss, ProbeResult
from elasticjob.store.probe import probe
from elasticjob.watch.heartbeats import MAX_PROBED, PROBE_SECONDS

logger = logging.getLogger(__name__)


class PostRoundProbe:
    """Probes the ports of ``endpoints``, by rank, a heartbeat period from now on; ``lost`` is called from the
    thread, once for each loss."""

    def __init__(
        self,
        endpoints: Mapping[int, str],
        limits: Limits,
        lost: Callable[[Mapping[int, Loss]], None],
    ) -> None:
        self._endpoints = dict(endpoints)
        self._lost = lost
        self._answered = dict.fromkeys(endpoints, 0)
        without_stall_limit = replace(limits, stall_timeout=float("inf"))
        self._monitor = HeartbeatMonitor(endpoints, without_stall_limit, time.monotonic())
        self._period = limits.heartbeat_period
        self._due = time.monotonic() + self._period
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elasticjob-post-round-probe", daemon=True)

    def start(self) -> None:
        """Begin, if there are members to probe; needed only while the next round does not come at once."""
        if self._endpoints and not self._stop.is_set() and self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(max(0.0, self._due - time.monotonic())):
            self._due = time.monotonic() + self._period
            try:
                self._probe()
                self._due = min(self._due, self._monitor.next_look())
            except Exception:  # a thread that ended would notice no loss any more
                logger.debug("probing the other members failed; retrying", exc_info=True)

    def _probe(self) -> None:
        suspects = self._monitor.tick(time.monotonic(), self._answered)[:MAX_PROBED]
        if not suspects:
            return
        found = probe({rank: self._endpoints[rank] for rank in suspects}, PROBE_SECONDS)
        now = time.monotonic()
        lost = {}
        for rank, what in found.items():
            if what is ProbeResult.ACCEPTED:
                self._answered[rank] += 1
            elif self._monitor.record_probe(now, rank, what):
                lost[rank] = self._monitor.lost[rank]
        if lost and not self._stop.is_set():
            self._lost(lost)
