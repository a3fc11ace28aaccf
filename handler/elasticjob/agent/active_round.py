"""One established round of an agent: its store, its workers, its drain, and the agent's reports of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from torch.distributed.elastic.agent.server.api import ElasticAgent

from elasticjob.agent.long_lived_parts import LongLivedParts
from elasticjob.contract import names
from elasticjob.contract.reports import DrainReport, FailureReport, StartsReport
from elasticjob.core.participant import Membership
from elasticjob.drain.agreement import Drain
from elasticjob.drain.board import StopBoard
from elasticjob.drain.pre_stop import PodHook
from elasticjob.store.connect import disconnect
from elasticjob.store.connection import StoreConnection
from elasticjob.store.round_store import RoundStore
from elasticjob.warm.eligibility import Starts
from elasticjob.watch.member_watch import WorkerFiles
from elasticjob.watch.step_files import StepReader
from elasticjob.worker import fenced
from elasticjob.workers.failures import RoundWorkers
from elasticjob.workers.speakers import Speakers
from elasticjob.workers.torch_agent import FailedWorker, local_world_size

logger = logging.getLogger(__name__)


class ActiveRound:
    """One agent's place in a round: its store, the connection to the leader, its workers and their drain.
    Created when the round is established, closed once."""

    def __init__(
        self,
        parts: LongLivedParts,
        membership: Membership,
        connection: StoreConnection,
        agent: ElasticAgent | None,
        steps: StepReader,
    ) -> None:
        self.membership = membership
        self._parts = parts
        self._connection = connection
        self.store = RoundStore(
            connection,
            membership.group_rank == 0,
            membership.group_rank,
            membership.size,
            parts.core.end_reason,
            self.succeeded,
            parts.core.job_complete,
        )
        self.workers = workers = RoundWorkers(agent, steps.folder)
        steps.follow(workers.listed)
        hook = PodHook(os.environ.get(names.POD_UID_ENV, ""))
        count = local_world_size(agent)
        board = StopBoard(steps.folder, count, hook, workers.listed, workers.has_ended_well)
        fences = Speakers(steps.folder, fenced.SUFFIX, workers.listed)
        self.files = WorkerFiles(steps, board, fences, count)
        self.drain = Drain(membership, board, self._stopped, parts.core.end_reason, self._report_waiting)

    def started(self, starts: Starts) -> None:
        """How the workers have started goes with the next write of the Lease."""
        m = self.membership
        report = StartsReport(m.nonce, starts.warm, starts.cold, starts.cold_reason, starts.preparing)
        self._parts.lease.attach(starts=report.dump())

    def succeeded(self) -> None:
        """torch enters its exit barrier: the local workers have finished well."""
        core = self._parts.core
        self.workers.mark_succeeded()
        with self._parts.changed:
            m = core.membership
            record = None if core.end_reason() else core.succeeded()
        if record is not None and m is not None:
            logger.info("all local workers have succeeded")
            self._parts.attach_progress()
            self._parts.lease.write(participant=record.dump(), finished=m.nonce)

    def failure(self, failures: Sequence[FailedWorker]) -> FailureReport | None:
        """The report on the first worker that failed in this round. Workers that were started with ranks
        assigned locally were never of the round: None."""
        if self.store.degraded:
            return None
        m = self.membership
        report = self.workers.failure(m.number, m.group_rank, failures)
        if report is None:
            return None
        logger.info("round %d: a local worker failed: %s", m.number, report.message)
        return replace(report, job_uid=m.job_uid, nonce=m.nonce)

    def close(self) -> None:
        """Disconnect from the leader; its server may go from now on."""
        self.drain.close()
        self._connection.close()
        if self.membership.group_rank != 0:
            disconnect(self.membership.leader_endpoint)
        self._connection.join()
        self.workers.close()

    def _stopped(self, step: int) -> None:
        """Report that the workers of all members have stopped. The leader only."""
        if not self._parts.core.end_reason():
            self._parts.watch.attach_progress()
            self._parts.lease.write(drain=DrainReport(self.membership.nonce, True, step).dump())

    def _report_waiting(self, step: int, ranks: tuple[int, ...]) -> None:
        """Report whose workers have not stopped while the round drains. The leader only."""
        if not self._parts.core.end_reason():
            report = DrainReport(self.membership.nonce, step=step, waiting_ranks=ranks)
            self._parts.lease.write(drain=report.dump())
