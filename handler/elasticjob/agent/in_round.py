"""Entering and leaving rounds: establishes a round that has this agent as a member, and clears up after it.

Runs in torchrun's main thread. The threads of a round are started last: all others wait for this agent until
it returns from ``next_rendezvous``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from torch.distributed.elastic.agent.server.api import ElasticAgent
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from elasticjob.agent.active_round import ActiveRound
from elasticjob.agent.long_lived_parts import (
    FLUSH_SECONDS,
    SUCCESS_FLUSH_SECONDS,
    LongLivedParts,
    log_failure,
)
from elasticjob.agent.torch_version import workers_may_share_agent_store
from elasticjob.contract import names
from elasticjob.contract.endpoint import parse_endpoint
from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.reports import FailureReport, RoundReport
from elasticjob.core.participant import RANK_UNKNOWN, Membership
from elasticjob.store.errors import CannotConnect, StoreGone
from elasticjob.store.server import LIBUV_ENV, has_libuv
from elasticjob.watch.establish import AgentContext, Established, Establishment
from elasticjob.watch.relay import Relay
from elasticjob.watch.step_files import StepFiles, StepReader
from elasticjob.workers import open_files
from elasticjob.workers.failures import RoundWorkers
from elasticjob.workers.leftovers import Ending
from elasticjob.workers.stack_dump import FAULTHANDLER_ENV
from elasticjob.workers.terminator import WorkerTerminator
from elasticjob.workers.torch_agent import FailedWorker, local_world_size

logger = logging.getLogger(__name__)

LINGER_SECONDS = 30.0
"""How long the leader's server stays at most for members that are still in the exit barrier."""


class InRound:
    """The rounds of one agent, one after the other. ``active`` is the present one, None between two."""

    def __init__(self, parts: LongLivedParts) -> None:
        self._parts = parts
        self.active: ActiveRound | None = None
        self._left: ActiveRound | None = None
        self._relay: Relay | None = None
        self._step_files = StepFiles()
        self.steps = StepReader("")
        """The steps of the round that is joined or active."""
        self.terminator = WorkerTerminator(parts.core, parts.settings.worker_stop, self._workers)
        self._ending: Ending | None = None
        self._context = AgentContext(
            changed=parts.changed,
            end_reason=parts.core.end_reason,
            healthy_seconds=parts.source.healthy_seconds,
            report=lambda report: parts.lease.write(report=report.dump()),
            list_members=parts.source.members,
            local_addr=parts.settings.local_addr,
            serves_workers=use_agent_store(),
        )

    # -- entering ------------------------------------------------------------------------------------------

    def establish(self, membership: Membership, agent: ElasticAgent | None) -> RendezvousInfo | None:
        """Pass the barrier in the leader's store. None: the round ended before that; announce again."""
        parts = self._parts
        m = replace(membership, limits=parts.settings.limits(membership.limits))
        leads = m.group_rank == 0
        parts.lease.renew_every(LEADER_RENEW_SECONDS if leads else MEMBER_RENEW_SECONDS)
        attempt = Establishment(m, parts.servers.enter(leads), self._context)
        try:
            done = attempt.run()
        except CannotConnect as error:
            self._cannot_connect(m, error)
        if done is not None:
            return self._enter(replace(m, group_rank=done.group_rank), done, agent)
        if attempt.not_a_member:
            logger.info("round %d was formed without this pod", m.number)
            parts.core.drop_membership()
        else:
            logger.info("round %d ended before it was established: %s", m.number, parts.core.end_reason())
        return None

    def _enter(self, m: Membership, done: Established, agent: ElasticAgent | None) -> RendezvousInfo:
        parts, steps = self._parts, self.steps
        leads = m.group_rank == 0
        parts.core.set_group_rank(m.group_rank)
        if leads:
            few = open_files.shortfall(m.size, m.size * (local_world_size(agent) or 1))
            if few:
                logger.warning("%s", few)
        active = self.active = ActiveRound(parts, m, done.connection, agent, steps)
        if parts.core.end_reason():
            active.workers.round_ended()
        os.environ[names.ROUND_ENV] = str(m.number)
        set_worker_environment()
        if parts.memory is not None:
            with log_failure("this round has no memory checkpoints"):
                parts.memory.begin(m)
        if parts.warm is not None:
            with log_failure("later workers start cold"):
                parts.warm.begin(lambda: steps.read() is not None, active.started, leads=leads)
        host, _ = parse_endpoint(m.leader_endpoint)
        logger.info(
            "round %d: group rank %d of %d, led by %s%s",
            m.number,
            m.group_rank,
            m.size,
            m.leader_endpoint,
            " (this agent)" * leads,
        )
        # Threads and requests last: starting one gives the processor to it.
        parts.servers.establish(done.workers_server)
        if leads:
            parts.lease.write(report=RoundReport(m.nonce, established=True).dump())
        self._relay = relay = Relay(m, lambda text: parts.lease.write(relay=text))
        parts.lease.on_trouble = relay.trouble
        relay.begin()
        parts.watch.begin(m, active.store, active.files)
        if parts.memory is not None:
            with log_failure("this round has no memory checkpoints"):
                parts.memory.meet(m)
        if self._ending is not None:
            self._ending.join()
        return RendezvousInfo(
            active.store,  # type: ignore[arg-type]  # torch calls methods, it does not look at the type
            m.group_rank,
            m.size,
            RendezvousStoreInfo(host, done.workers_port),
        )

    def _cannot_connect(self, m: Membership, error: CannotConnect) -> NoReturn:
        """Report that this pod has failed, and why: no peer and no node is to blame."""
        text = f"torchrun cannot connect to the leader {m.leader_endpoint}: {error}"
        rank = 0 if m.group_rank == RANK_UNKNOWN else m.group_rank
        report = FailureReport(m.number, rank, text, job_uid=m.job_uid, nonce=m.nonce)
        self._parts.lease.write(failure=report.dump())
        self._parts.lease.flush(FLUSH_SECONDS)
        raise RendezvousConnectionError(f"round {m.number}: {text}") from error

    # -- leaving -------------------------------------------------------------------------------------------

    def leave(self, failures: Sequence[FailedWorker]) -> FailureReport | None:
        """Leave the active round. Returns the report of its workers' failure if any failed by themselves."""
        parts, active, report = self._parts, self.active, None
        if active is not None:
            report = active.failure(failures)
            end_reason = parts.core.end_reason() or ("its store is gone" if report is None else "")
            if end_reason:
                logger.info("round %d is over: %s", active.membership.number, end_reason)
            self._end_leftovers(active)
        parts.attach_progress()
        if active is not None:
            parts.watch.leave()
            if self._relay is not None:
                self._relay.leave(report)
        self._detach()
        return report

    def clear_up(self) -> None:
        """Close the round that was left, and make the folder of the next. The others wait for neither, so it
        is done after the announcement."""
        self._close_left()
        self.steps = self._step_files.renew()

    def forget_last(self) -> None:
        """There is a next round, or there will be none: the last one's members are no longer looked after."""
        self._parts.watch.stop_post_round_probe()
        relay, self._relay = self._relay, None
        if relay is not None and relay.stop():
            self._parts.lease.attach(relay=None)

    def end(self, failures: Sequence[FailedWorker]) -> None:
        """torch's agent ends: let the others pass the exit barrier, and report why it ends if it fails."""
        active, lease = self.active, self._parts.lease
        if active is not None:
            if active.store.passed and active.store.group_rank == 0:
                self._linger(active)
            if failures and (report := active.failure(failures)) is not None:
                lease.write(failure=report.dump())
            if not active.store.passed:
                self._end_leftovers(active)
        well = active is not None and active.store.passed
        lease.flush(SUCCESS_FLUSH_SECONDS if well and self._parts.settings.peers else FLUSH_SECONDS)
        if self._ending is not None:
            self._ending.join()

    def close(self) -> None:
        """End the threads of the active round and of the one before."""
        self.forget_last()
        self._detach()
        self._close_left()

    def remove_files(self) -> None:
        """Remove the folder of the workers' steps."""
        self._step_files.remove()

    def _detach(self) -> None:
        """The agent is in no round from now on: a guard that fires later kills nothing."""
        self._close_left()
        self._left, self.active = self.active, None
        if self._parts.memory is not None:
            self._parts.memory.leave()
        self._parts.watch.stop_heartbeats()

    def _close_left(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left.close()

    def _end_leftovers(self, active: ActiveRound) -> None:
        """End what the workers have left behind, before the next ones start."""
        warm = self._parts.warm
        spared = warm.idle_pids() if warm is not None else frozenset()
        self._ending = active.workers.end_leftovers(active.membership.number, spared)

    def _linger(self, active: ActiveRound) -> None:
        """The leader's server stays until all members have passed the exit barrier."""
        deadline = time.monotonic() + LINGER_SECONDS
        try:
            while not active.store.all_passed() and time.monotonic() < deadline:
                with self._parts.changed:
                    self._parts.changed.wait(0.05)
        except StoreGone:
            pass

    def _workers(self) -> RoundWorkers | None:
        active = self.active
        return active.workers if active is not None else None


def use_agent_store() -> bool:
    """Whether the leader's agent serves a fresh store for the workers of each round.

    On torch 2.4 and 2.5 global rank 0's worker serves it, at a port that the leader's agent keeps for it.
    """
    return workers_may_share_agent_store(str(torch.__version__))


def set_worker_environment() -> None:
    """Set what workers inherit in every round."""
    os.environ.setdefault(FAULTHANDLER_ENV, "1")
    if not has_libuv():
        os.environ[LIBUV_ENV] = "0"  # otherwise the workers' stores fail, too
