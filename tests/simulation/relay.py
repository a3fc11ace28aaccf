"""The way that is left to an agent that cannot write its Lease: ``elasticjob.watch.relay`` in small.

A word in the round's store wakes those that listen, a heartbeat period later at the latest.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from elasticjob.contract.relay import RELAYING_RANKS, CutOff, RelayReport
from elasticjob.contract.reports import FailureReport
from elasticjob.core.participant import Membership
from elasticjob.core.write_trouble import WriteTrouble
from tests.simulation.ground import Ground
from tests.simulation.kernel import Kernel

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Relay:
    """One torchrun's part, round after round."""

    def __init__(self, agent: Agent, kernel: Kernel, ground: Ground) -> None:
        self._agent = agent
        self._kernel = kernel
        self._ground = ground
        self._trouble = WriteTrouble()
        self._closed = False
        self._own_rng = random.Random(agent.uid)
        """Its own, so that relayed words change nothing else of a history."""
        self._forget(None)

    def _forget(self, m: Membership | None) -> None:
        self._m = m
        self._own = CutOff(0 if m is None else m.group_rank, "")
        self._said: CutOff | None = None
        self._cut_off: dict[int, CutOff] = {}
        self._read = 0
        self._published: RelayReport | None = None

    def begin(self, m: Membership) -> None:
        """A round is established."""
        self._forget(m)

    def stop(self) -> None:
        """Another round is there, or none will be."""
        if self._published is not None:
            self._agent.unwrite_relay()
        self._forget(None)

    def close(self) -> None:
        """Its process has ended."""
        self._closed = True

    def failed(self, began: float) -> None:
        """A write that began then has failed."""
        if self._trouble.failed(began, self._kernel.now):
            self._troubled("unavailable")

    def succeeded(self) -> None:
        """A write has succeeded."""
        if self._trouble.over():
            self._troubled("")

    def _troubled(self, why: str) -> None:
        if bool(why) != bool(self._own.why):
            self._own = CutOff(self._own.group_rank, why, self._own.left, self._own.failure)
        self._say()

    def leave(self, failure: FailureReport | None) -> None:
        """This agent has left the round."""
        self._own = CutOff(self._own.group_rank, self._own.why, True, failure)
        self._say()

    def _say(self) -> None:
        m, known = self._m, self._said or CutOff(self._own.group_rank, "")
        if m is None or m.size == 1 or self._own == known or not (self._own.why or known.why):
            return
        if not self._ground.behaviour.relays:
            return
        _, keys = self._agent.meeting.keys(m)
        if keys is None:
            return  # the next write that fails is the next occasion
        keys.words.append(self._own)
        self._said = self._own
        for other in self._ground.agents():
            if other.alive:
                other.relay.told(m)

    def told(self, m: Membership) -> None:
        """There is a word in the store of this round."""
        mine = self._m
        if mine is not None and mine.prefix == m.prefix and mine.group_rank < RELAYING_RANKS:
            self._kernel.after(self._own_rng.uniform(0.0, m.limits.heartbeat_period), self._listen, mine)

    def _listen(self, m: Membership) -> None:
        if self._m is not m or self._closed or not self._agent.alive:
            return
        if self._agent.frozen:
            self._agent.when_thawed(lambda: self._listen(m))
            return
        _, keys = self._agent.meeting.keys(m)
        if keys is None:
            self._kernel.after(m.limits.heartbeat_period, self._listen, m)
            return
        for word in keys.words[self._read :]:
            if word.why:
                self._cut_off[word.group_rank] = word
            else:
                self._cut_off.pop(word.group_rank, None)
        self._read = len(keys.words)
        others = [word for rank, word in self._cut_off.items() if rank != m.group_rank]
        if m.group_rank != 0 and 0 not in self._cut_off:
            others = []
        report = RelayReport.of(m.nonce, others) if others else None
        if report != self._published:
            self._published = report
            self._agent.write_relay(report)
