"""An agent's heartbeats in small: ``elasticjob.watch.heartbeats`` around the real monitor, and what it
reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticjob.contract.reports import RoundReport
from elasticjob.core.heartbeats import HeartbeatMonitor, ProbeResult
from elasticjob.core.participant import Membership
from tests.simulation.ground import Ground, Network
from tests.simulation.kernel import Script, Thread
from tests.simulation.lease_writer import LeaseWriter

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Heartbeats:
    """A thread of its own."""

    def __init__(self, agent: Agent, network: Network, ground: Ground, lease: LeaseWriter) -> None:
        self._agent = agent
        self._kernel = agent.kernel
        self._network = network
        self._ground = ground
        self._lease = lease
        self.silent: tuple[int, ...] = ()
        """The ranks of this round that the leader has found lost."""
        self._monitor: HeartbeatMonitor | None = None
        self._answers = 0
        self._thread: Thread = agent.spawn(self._run())

    @property
    def idle(self) -> bool:
        """Whether they are not played now."""
        return self._monitor is None

    def begin(self) -> None:
        """Of another round."""
        self.silent, self._monitor = (), None
        self._thread.wake()

    def look(self) -> None:
        """Something in the world has changed."""
        self._thread.wake()

    def close(self) -> None:
        """Its process has ended."""
        self._thread.close()

    def _run(self) -> Script:
        """Heartbeats are played only while something is wrong with a member: else they tell nothing new."""
        while True:
            m = self._agent.in_round
            if m is None or m.size == 1 or not self._any_faulty(m):
                self._monitor = None
                yield 1e9
                continue
            if self._monitor is None:
                peers = range(1, m.size) if m.group_rank == 0 else [0]
                self._monitor = HeartbeatMonitor(peers, m.limits, self._kernel.now)
            yield from self._one_heartbeat(m)

    def _one_heartbeat(self, m: Membership) -> Script:
        due = self._kernel.now + m.limits.heartbeat_period
        if self._monitor is not None:
            due = min(due, max(self._monitor.next_look(), self._kernel.now) + 1e-3)
        while self._kernel.now < due - 1e-6:
            yield due - self._kernel.now
        if self._agent.in_round is not m or self._monitor is None:
            return
        counts: dict[int, int] = {}
        _, keys = self._agent.meeting.keys(m)
        if keys is not None:
            if m.group_rank == 0:
                self._play_others(m, keys.heartbeats)
                counts = dict(keys.heartbeats)
            else:
                keys.heartbeats[m.group_rank] = keys.heartbeats.get(m.group_rank, 0) + 1
                self._answers += 1
                counts = {0: self._answers}
        monitor, now = self._monitor, self._kernel.now
        lost = [
            rank
            for rank in monitor.tick(now, counts)
            if monitor.record_probe(now, rank, self._probe(m, rank))
        ]
        if lost:
            self._lost(m, lost)

    def _play_others(self, m: Membership, heartbeats: dict[int, int]) -> None:
        """Members whose own heartbeats are not played, since nothing is wrong with them, send some all the
        same."""
        for agent in self._ground.agents():
            other = agent.in_round
            if (
                other is not None
                and other.prefix == m.prefix
                and agent.alive
                and not agent.frozen
                and self._network.answers(agent)
                and self._network.connected(self._agent, agent)
                and agent.heartbeats.idle
            ):
                heartbeats[other.group_rank] = heartbeats.get(other.group_rank, 0) + 1

    def _peer(self, m: Membership, rank: int) -> Agent | None:
        for agent in self._ground.agents():
            held = agent.core.membership
            if held is not None and (held.prefix, held.group_rank) == (m.prefix, rank):
                return agent
        return None

    def _probe(self, m: Membership, rank: int) -> ProbeResult:
        peer = self._peer(m, rank)
        if peer is None:
            return ProbeResult.REFUSED
        if not self._network.connected(self._agent, peer) or not self._network.answers(peer):
            return ProbeResult.SILENT
        return ProbeResult.ACCEPTED if peer.alive else ProbeResult.REFUSED

    def _any_faulty(self, m: Membership) -> bool:
        """Whether anything is wrong with any member of this round, or with the paths between them."""
        if self._monitor is not None and self._monitor.lost:
            return True
        mates = [a for a in self._ground.agents() if a.in_round is not None and a.in_round.prefix == m.prefix]
        if len(mates) < m.size:
            return True
        leader = next((a for a in mates if a.in_round is not None and a.in_round.group_rank == 0), None)
        return leader is None or any(
            a.frozen or not self._network.answers(a) or not self._network.connected(a, leader) for a in mates
        )

    def _lost(self, m: Membership, ranks: list[int]) -> None:
        if self._agent.core.end_reason() or self._agent.passed:
            return
        self._kernel.say(f"{self._agent.name}: ranks {ranks} of round {m.number} are lost")
        if m.group_rank != 0:
            connection_refused = (
                self._monitor is not None and self._monitor.lost[0].probe is ProbeResult.REFUSED
            )
            self._lease.write(
                report=RoundReport(m.nonce, leader_lost=True, connection_refused=connection_refused)
            )
            return
        self._ground.missed(m)
        self.silent = tuple(sorted({*self.silent, *ranks}))
        self._lease.write(report=RoundReport(m.nonce, True, silent_ranks=self.silent))
