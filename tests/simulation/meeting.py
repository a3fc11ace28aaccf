"""How the members of a round meet in the store of its leader: ``elasticjob.watch.establish`` in small."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticjob.contract.reports import RoundReport
from elasticjob.core.participant import RANK_UNKNOWN, Membership
from tests.simulation.api import LIST_KEY, NotFound, Unavailable
from tests.simulation.ground import Ground, Network, RoundKeys
from tests.simulation.kernel import Script
from tests.simulation.lease_writer import LeaseWriter

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Meeting:
    """One torchrun's part, round after round."""

    def __init__(self, agent: Agent, network: Network, ground: Ground, lease: LeaseWriter) -> None:
        self._agent = agent
        self._api = agent.api
        self._kernel = agent.kernel
        self._network = network
        self._ground = ground
        self._lease = lease

    def meet(self, m: Membership) -> Script:
        """Wait for all members. Returns the membership with its rank; None if the round has ended, or has no
        place for this agent."""
        began, reported, arrived = self._kernel.now, False, False
        while not self._agent.core.end_reason():
            what, keys = self.keys(m)
            if m.group_rank == 0 and keys is not None and not m.member_ids and not keys.ranks:
                yield from self._store_ranks(m, keys)
                began = self._kernel.now
                continue
            if m.group_rank == RANK_UNKNOWN and keys is not None:
                arrived = True
                if keys.ranks:
                    if m.id not in keys.ranks:
                        self._agent.core.drop_membership()
                        self._agent.endpoints.pop()
                        return None
                    m = replace(m, group_rank=keys.ranks[m.id])
                    self._agent.core.set_group_rank(m.group_rank)
            if keys is not None and m.group_rank != RANK_UNKNOWN:
                came_last = len(keys.here | {m.group_rank}) == m.size > len(keys.here)
                keys.here.add(m.group_rank)
                if came_last:
                    self.wake_mates()
                if len(keys.here) == m.size:
                    if reported and m.group_rank:
                        self._lease.write(report=RoundReport(m.nonce))
                    return m
                arrived = True
            limit = m.limits.establish_timeout * (2 if arrived and m.group_rank else 1)
            late = self._kernel.now - began > limit and self._agent.watch_healthy_seconds() > limit
            if not reported and (late or (arrived and what == "refused")):
                reported = True
                self._report_late(m)
            yield 0.5
        return None

    def keys(self, m: Membership) -> tuple[str, RoundKeys | None]:
        """The round's keys in the leader's store, if a call to it is answered."""
        what, leader = self._store(m)
        if leader is None or what != "here":
            return what, None
        return what, leader.stores.setdefault(m.prefix, RoundKeys())

    def wake_mates(self) -> None:
        """The last one opens a barrier for all."""
        for agent in self._ground.agents():
            if agent is not self._agent:
                agent.wake()

    def _store(self, m: Membership) -> tuple[str, Agent | None]:
        """What a call to the round's store meets: "here", "refused" or "silent"."""
        if m.group_rank == 0:
            return "here", self._agent
        leader = self._ground.by_address(m.leader_endpoint.partition(":")[0])
        if (
            leader is None
            or not self._network.connected(self._agent, leader)
            or not self._network.answers(leader)
        ):
            return "silent", None
        if not leader.alive or m.leader_endpoint not in (*leader.endpoints, leader.offered):
            return "refused", None
        return ("silent" if leader.frozen else "here"), leader

    def _store_ranks(self, m: Membership, keys: RoundKeys) -> Script:
        """The leader of a large round reads who its members are, and lets each find its rank."""
        with contextlib.suppress(NotFound, Unavailable):
            item = yield self._api.request(self._agent, lambda: self._api.get(LIST_KEY))
            if item.value.head == (m.job_uid, m.number, m.nonce):
                keys.ranks.update({member: rank for rank, member in enumerate(item.value.member_ids)})
                self.wake_mates()
                return
        yield 0.5

    def _report_late(self, m: Membership) -> None:
        if m.group_rank == 0:
            here = self._agent.stores.setdefault(m.prefix, RoundKeys()).here
            unarrived = tuple(rank for rank in range(m.size) if rank not in here)
            report = RoundReport(m.nonce, unarrived_ranks=unarrived)
        else:
            report = RoundReport(m.nonce, leader_lost=True)
        self._lease.write(report=report)
