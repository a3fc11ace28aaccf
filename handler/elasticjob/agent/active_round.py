"""Everything that belongs to one round of an agent. Created when the round is established, closed once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from elasticjob.contract.reports import FailureReport
from elasticjob.core.participant import Membership
from elasticjob.drain.agreement import Drain
from elasticjob.store.connect import disconnect
from elasticjob.store.connection import StoreConnection
from elasticjob.store.round_store import RoundStore
from elasticjob.workers.failures import RoundWorkers
from elasticjob.workers.torch_agent import FailedWorker

logger = logging.getLogger(__name__)


class ActiveRound:
    """One agent's place in a round, its store, the connection to the leader, its workers and their drain."""

    def __init__(
        self,
        membership: Membership,
        store: RoundStore,
        connection: StoreConnection,
        workers: RoundWorkers,
        drain: Drain,
    ) -> None:
        self.membership = membership
        self.store = store
        self.workers = workers
        self.drain = drain
        self._connection = connection

    def failure(self, failures: Sequence[FailedWorker]) -> FailureReport | None:
        """The report on the first worker that failed in this round; none on workers that were started with
        ranks assigned locally, which were never of the round."""
        if self.store.degraded:
            return None
        report = self.workers.failure(self.membership.number, self.membership.group_rank, failures)
        if report is not None:
            logger.info("round %d: a local worker failed: %s", self.membership.number, report.message)
        return report

    def close(self) -> None:
        """Disconnect from the leader; its server may go from now on."""
        self.drain.close()
        self._connection.close()
        if self.membership.group_rank != 0:
            disconnect(self.membership.leader_endpoint)
        self._connection.join()
        self.workers.close()
