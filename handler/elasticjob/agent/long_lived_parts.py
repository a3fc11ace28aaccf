"""The parts of one agent that last from its first round to its last."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.distributed.elastic.multiprocessing.api import SignalException

from elasticjob.agent.memory import AgentMemory
from elasticjob.agent.settings import Settings
from elasticjob.api.leases import LeaseApi
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import Participant
from elasticjob.leases.round_source import LeaseRoundSource, RoundSource
from elasticjob.leases.writer import LeaseWriter
from elasticjob.store.own_servers import OwnServers
from elasticjob.warm.workers import WarmWorkers
from elasticjob.watch.member_watch import MemberWatch

logger = logging.getLogger(__name__)

OpenSource = Callable[[Callable[[RoundRecord], None]], RoundSource]

FLUSH_SECONDS = 5.0
"""How long the agent waits for its last write before it ends."""
SUCCESS_FLUSH_SECONDS = 30.0
"""That time if it says that its workers have finished well, and no operator sees how its pod ends."""


class LongLivedParts:
    """``observed`` and ``unpublished`` are called from the thread of ``source``. Nothing runs yet."""

    def __init__(
        self,
        settings: Settings,
        open_api: Callable[[], LeaseApi],
        observed: Callable[[RoundRecord], None],
        unpublished: Callable[[], None],
        open_source: OpenSource | None = None,
    ) -> None:
        self.settings = settings
        self.changed = threading.Condition()
        """Held while ``core`` takes something in, and notified of each record."""
        self.core = Participant(settings.job_uid)
        self.api = open_api()
        self.source: RoundSource = (
            open_source(observed)
            if open_source is not None
            else LeaseRoundSource(open_api(), self.api, settings.job, observed, unpublished)
        )
        self.lease = LeaseWriter(self.api, settings.pod, settings.pod_uid, self.source.labels)
        self.lease.attach(**self.source.introduction)
        self.lease.on_write = self.source.said
        self.servers = OwnServers()
        self.warm = WarmWorkers(settings.warm_imports) if settings.warm else None
        self.memory = AgentMemory(settings, self.changed, self.warm) if settings.memory else None
        """Memory checkpoints; None if the job has none."""
        self.watch = MemberWatch(self.core, self.lease, self.source.verify, self.warm)

    def write_leaving(self) -> None:
        """Write that this agent ends."""
        record = self.core.leaving()
        if record is not None:
            self.lease.write(participant=record.dump())
            self.lease.flush(1.0)

    def attach_progress(self) -> None:
        """How far training has come goes with the next write of the Lease."""
        with log_failure("how far training has come is not reported"):
            self.watch.attach_progress()


@contextmanager
def log_failure(consequence: str) -> Iterator[None]:
    """Log what a helper raises, and go on: training and rounds do without it. A signal's exception passes."""
    try:
        yield
    except SignalException:
        raise
    except Exception:
        logger.warning("%s", consequence, exc_info=True)
