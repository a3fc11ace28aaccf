"""What writes an agent's Lease, in small: ``lease_writer`` and ``api.leases`` of the handler.

What is to be said is said until it is written, and then again at the interval; another writer that has taken
over the Lease is not written over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from elasticjob.contract.reports import ProgressReport
from elasticjob.core.renewal_schedule import RenewalSchedule
from tests.simulation.api import Conflict, Key, NotFound, Unavailable
from tests.simulation.ground import Ground, LeaseValue
from tests.simulation.kernel import Script, Thread

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

FLUSH_SECONDS = 5.0


class LeaseWriter:
    """A thread of its own. ``progress`` is asked before each write."""

    def __init__(self, agent: Agent, ground: Ground, progress: Callable[[], ProgressReport | None]) -> None:
        self._agent = agent
        self._api = agent.api
        self._kernel = agent.kernel
        self._ground = ground
        self._progress = progress
        self._writer_id = f"{agent.kernel.rng.getrandbits(32):08x}"
        self.voice = LeaseValue(agent.uid, self._writer_id)
        """What it says, as of the last change."""
        self.superseded = False
        self._requested = self._written = 0
        self._version = 0
        self._renewals = RenewalSchedule(5.0, 0.0, lambda: self._kernel.between(0.9, 1.1))
        self._thread: Thread = agent.spawn(self._run())

    def close(self) -> None:
        """Its process has ended."""
        self._thread.close()

    def write(self, **changes: Any) -> None:
        """Say something else, or more."""
        self.voice = self.voice._replace(**changes)
        self._requested += 1
        self._thread.wake()

    def renew_every(self, seconds: float) -> None:
        """Another interval."""
        if self._renewals.every(seconds, self._kernel.now):
            self._thread.wake()

    def _run(self) -> Script:
        pause = 0.2
        while not self.superseded:
            self._renewals.begin(self._kernel.now)
            while self._requested == self._written and (
                self._kernel.now < self._renewals.due or not self._requested
            ):
                yield max(self._renewals.due - self._kernel.now, 1.0)
            self.voice = self.voice._replace(progress=self._progress())
            upto, voice, began = self._requested, self.voice, self._kernel.now
            try:
                if self._version:
                    self._version = yield self._api.request(self._agent, partial(self._patch, voice))
                else:
                    self._version = yield self._api.request(self._agent, partial(self._take_over, voice))
                self._written = max(self._written, upto)
                pause = 0.2
                self._agent.relay.succeeded()
            except Conflict:
                yield from self._resolve()
                yield pause
            except NotFound:
                self._version = 0
                yield pause
            except Unavailable:
                self._ground.unheard(self._agent)
                self._agent.relay.failed(began)
                yield pause * self._kernel.between(0.8, 1.2)
                pause = min(10.0, pause * 2)

    def _key(self) -> Key:
        return ("lease", self._agent.name)

    def _identify(self) -> None:
        if self._kernel.now < self._agent.mute_until:
            raise Unavailable(f"401: the token of pod {self._agent.name} is refused")
        if not self._ground.knows(self._agent):
            raise Unavailable(f"401: the token of pod {self._agent.name}, which is gone")

    def _patch(self, voice: LeaseValue) -> int:
        self._identify()
        return self._api.put(self._key(), voice, version=self._version).version

    def _take_over(self, voice: LeaseValue) -> int:
        """Server-side apply: it does not touch what the torchrun before has said of the round it finished."""
        self._identify()
        there = self._api.items.get(self._key())
        if there is not None and not voice.finished:
            voice = voice._replace(finished=there.value.finished)
            self.voice = self.voice._replace(finished=there.value.finished)
        return self._api.put(self._key(), voice).version

    def _resolve(self) -> Script:
        try:
            item = yield self._api.request(self._agent, lambda: self._api.get(self._key()))
        except (NotFound, Unavailable):
            return
        if item.value.writer == self._writer_id:
            self._version = item.version
            return
        self.superseded = True
        self._agent.wake()

    def flush(self) -> Script:
        """Wait until what was said is written."""
        until = self._kernel.now + FLUSH_SECONDS
        while self._written < self._requested and self._kernel.now < until and not self.superseded:
            yield 0.1
        if self._written < self._requested:
            self._ground.unheard(self._agent)
