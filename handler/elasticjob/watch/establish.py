"""Establishing a round: every member reaches the leader's store and passes a barrier in it.

This happens inside ``next_rendezvous``, which also watches for a newer record. A member that does not arrive,
or a leader that cannot be reached, is reported, not judged: the operator breaks the round.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticjob.api.errors import ApiError
from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.fields import RecordError
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import MemberList
from elasticjob.contract.text import counted
from elasticjob.core.participant import RANK_UNKNOWN, Membership
from elasticjob.core.pauses import exponential
from elasticjob.store.connect import connect, disconnect
from elasticjob.store.connection import KeyValueStore, StoreConnection
from elasticjob.store.errors import CannotConnect, StoreGone, Unreachable
from elasticjob.store.held_port import HeldPort
from elasticjob.store.server import Server, serve
from elasticjob.watch.heartbeats import ENDPOINT_KEY, HEARTBEAT_KEY, NO_STEP, STEP_KEY

if TYPE_CHECKING:
    from torch.distributed import TCPStore

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 2.0
COUNT_KEY, ALL_ARRIVED_KEY, WORKERS_PORT_KEY = "elasticjob/count", "elasticjob/all", "elasticjob/workers"
RANKS_KEY, RANK_KEY = "elasticjob/ranks", "elasticjob/rank/"
"""Used if the record has no member list: that all ranks are stored, and each rank by its member's id."""
NOT_A_MEMBER = "none"


@dataclass(frozen=True)
class Established:
    """The barrier is passed, by ``group_rank``. ``workers_port`` is where the workers' store is, on the
    leader's host; on the leader itself ``workers_server`` is what must be kept for it."""

    connection: StoreConnection
    group_rank: int
    workers_port: int
    workers_server: Server | HeldPort | None


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """How an attempt learns from its agent, and how it reports."""

    changed: threading.Condition
    """Notified when ``end_reason`` may have changed."""
    end_reason: Callable[[], str]
    """Why the round is over; "" while it is not."""
    healthy_seconds: Callable[[], float]
    """How many seconds this agent's watch of the round record has had no gap."""
    report: Callable[[RoundReport], None]
    """Reports to the operator."""
    list_members: Callable[[], MemberList] | None = None
    """Reads the member list from the API server; only a leader whose round record has none needs it."""
    local_addr: str = ""
    """The address at which other members reach this agent; "" if the route to the leader decides."""
    serves_workers: bool = True
    """Whether the agent, if it leads, serves the workers' store (a fresh server in each round), or only keeps
    a port for global rank 0's worker, which then serves it. All other workers are clients in both cases."""


class Establishment:
    """One attempt at one round. ``server`` is the agent's own; the leader's serves the round.

    A leader whose record has no member list reads it and stores each member's rank. Any other participant
    finds no rank of its own there: ``not_a_member``.
    """

    def __init__(self, membership: Membership, server: Server, agent: AgentContext) -> None:
        self._m = membership
        self._leads = membership.group_rank == 0
        self._server = server
        self._agent = agent
        self._changed = agent.changed
        self._end_reason = agent.end_reason
        self._reported = self._arrived = False
        self._ranks_pending = self._leads and not membership.member_ids
        self._began = time.monotonic()
        self.not_a_member = False
        self._workers: Server | HeldPort | None = None
        if self._leads:
            self._workers = Server(serve()) if agent.serves_workers else HeldPort()
        self._connection = StoreConnection(self._open, membership.prefix, self._changed)

    def run(self) -> Established | None:
        """Pass the barrier; None if the round is over before that, or this agent is no member.

        Raises CannotConnect if this process can connect to no one: then no other member is accused.
        """
        call = self._connection.submit(self._arrive)
        last_error = "it does not answer"
        own: CannotConnect | None = None
        while True:
            with self._changed:
                while not call.done and not self._end_reason() and not self._late():
                    self._changed.wait(0.5)
            if self._end_reason():
                self._abandon()
                return None
            if call.done:
                try:
                    rank, port = call.result()
                except CannotConnect as error:
                    own = error
                    if error.passing:
                        self._pause(RETRY_SECONDS)
                        call = self._connection.submit(self._arrive)
                except Unreachable as error:
                    last_error, own = str(error), None
                    self._pause(RETRY_SECONDS)
                    call = self._connection.submit(self._arrive)
                except StoreGone as error:
                    self._report_late(str(error))
                    self._pause(0.5)
                else:
                    if rank is None:
                        self.not_a_member = True
                        self._connection.close()
                        self._connection.join()
                        return None
                    if self._reported and not self._leads:
                        self._agent.report(RoundReport(self._m.nonce))  # it accuses the leader no longer
                    return Established(self._connection, rank, port, self._workers)
            if own is not None and (self._late() or not own.passing):
                self._abandon()
                raise own
            if self._late():
                self._report_late(last_error)

    def _abandon(self) -> None:
        """Leave nothing behind of a round that is over before it was established."""
        self._connection.close()
        if not self._leads:
            disconnect(self._m.leader_endpoint)
        self._connection.join()
        if self._workers is not None:
            self._workers.close()

    def _open(self) -> TCPStore:
        return self._server.store if self._leads else connect(self._m.leader_endpoint)

    def _arrive(self, store: KeyValueStore) -> tuple[int | None, int]:
        """Arrive, and wait for all members, in the connection's thread. Returns the own rank (None if this
        agent is no member) and the workers' port."""
        m, rank = self._m, self._m.group_rank
        if self._workers is not None:
            heartbeats, steps = (
                [f"{key}{rank}" for rank in range(m.size)] for key in (HEARTBEAT_KEY, STEP_KEY)
            )
            values = [str(self._workers.port), *("0" for _ in heartbeats), *(str(NO_STEP) for _ in steps)]
            store.multi_set([WORKERS_PORT_KEY, *heartbeats, *steps], values)
            if not m.member_ids:
                self._store_ranks(store)
        elif rank == RANK_UNKNOWN:
            self._arrived = True
            self._connection.wait_for(store, [RANKS_KEY], own=False)
            # One call instead of `check` and `get`: a missing key is answered with the expected value.
            answer = bytes(store.compare_set(f"{RANK_KEY}{m.id}", NOT_A_MEMBER, NOT_A_MEMBER)).decode()
            if answer == NOT_A_MEMBER:
                return None, 0
            rank = int(answer)
        store.set(f"{ENDPOINT_KEY}{rank}", format_endpoint(self._own_host(), self._server.port))
        count = store.add(COUNT_KEY, 1)
        self._arrived = True
        if count == m.size:
            store.set(ALL_ARRIVED_KEY, "1")
        self._connection.wait_for(store, [ALL_ARRIVED_KEY], own=self._leads)
        return rank, int(store.get(WORKERS_PORT_KEY))

    def _store_ranks(self, store: KeyValueStore) -> None:
        """Read the member list, for as long as it takes, and store each member's rank. The leader only."""
        assert self._agent.list_members is not None
        failures = 0
        while True:
            try:
                found = self._agent.list_members()
                if found.head == (self._m.job_uid, self._m.number, self._m.nonce):
                    break
                last_error = f"it belongs to round {found.number}"
            except (ApiError, RecordError) as error:
                last_error = str(error)
            logger.debug("round %d: the member list cannot be read: %s", self._m.number, last_error)
            if self._connection.closed:
                raise StoreGone("given up")
            failures += 1
            time.sleep(exponential(RETRY_SECONDS, MAX_RETRY_SECONDS, failures))
        keys = [f"{RANK_KEY}{member}" for member in found.member_ids]
        store.multi_set([*keys, RANKS_KEY], [*(str(rank) for rank in range(len(keys))), "1"])
        self._began, self._ranks_pending = time.monotonic(), False

    def _own_host(self) -> str:
        """The address by which the leader can reach this agent: the one we reach the leader from."""
        if self._agent.local_addr:
            return self._agent.local_addr
        family, _, _, _, address = socket.getaddrinfo(*parse_endpoint(self._m.leader_endpoint))[0]
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.connect(address)
            return str(one.getsockname()[0])

    def _late(self) -> bool:
        """Whether it takes too long: by our own clock, and only while our own watch is good.

        A member that has reached the leader and waits for others gives it twice the time: the leader must
        have named the members that have not arrived by then. A leader that has not stored the ranks expects
        no member yet.
        """
        if self._ranks_pending:
            return False
        limit = self._m.limits.establish_timeout
        if self._arrived and not self._leads:
            limit *= 2
        late = time.monotonic() - self._began > limit and self._agent.healthy_seconds() > limit
        return late and not self._reported

    def _report_late(self, last_error: str) -> None:
        """Report once: the leader which members are missing, the others that they cannot reach the leader."""
        if self._reported:
            return
        self._reported = True
        m = self._m
        if self._leads:
            unarrived = self._unarrived()
            members = counted(len(unarrived), "member")
            logger.warning(
                "round %d: %s did not reach this leader in time. Does a NetworkPolicy keep pods from it?",
                m.number,
                members,
            )
            self._agent.report(
                RoundReport(m.nonce, unarrived_ranks=unarrived, message="did not arrive in time")
            )
        else:
            logger.warning("round %d: cannot reach the leader: %s", m.number, last_error)
            self._agent.report(RoundReport(m.nonce, leader_lost=True, message=last_error))

    def _unarrived(self) -> tuple[int, ...]:
        own = StoreConnection(
            lambda: connect(format_endpoint("127.0.0.1", self._server.port)), self._m.prefix, self._changed
        )
        try:
            return own.call(
                lambda store: tuple(
                    rank for rank in range(self._m.size) if not store.check([f"{ENDPOINT_KEY}{rank}"])
                ),
                self._end_reason,
            )
        except StoreGone:
            return ()
        finally:
            own.close()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
