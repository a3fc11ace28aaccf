"""Carrying out a plan: status, then access and the round Lease, then pods and Leases, then Events.

The order is the protocol (docs/internals/writes.md): the status is the write-ahead log, the round Lease its
projection, and a pod's name is in the status and in its Role before the pod is created. A process that dies
between any two of these writes leaves something from which the next pass resumes. A failed write delays only
itself and what depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from elasticjob_operator.act import claims
from elasticjob_operator.act.batch import Batch
from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.job_state import JobState, Spawn
from elasticjob_operator.act.owned_writer import OwnedWriter
from elasticjob_operator.act.pod_creation import PodCreation
from elasticjob_operator.act.pods import PodWriter
from elasticjob_operator.act.queues import Queues
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher, RoundPublisher
from elasticjob_operator.act.spec_warnings import new_warnings
from elasticjob_operator.act.status_writer import StatusWriter
from elasticjob_operator.act.write_backoff import CLAIMS, ROUND
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.plan.state.model import Event, Job, Plan

FAILING_WRITES_SHOWN_SECONDS = 1.0
"""How soon there is another pass when other writes fail than this one knew of: the condition names them."""


class Applier:
    """Carries out plans, of any job. ``spawn`` runs what may outlive a pass. ``queues``: those of
    Kueue are heeded; ``pod_groups``: those that jobs may have."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        clock: Callable[[], float],
        handler_image: HandlerImage,
        spawn: Spawn,
        queues: bool = False,
        pod_groups: Collection[str] = (),
    ) -> None:
        self._api = api
        self._cache = cache
        self._clock = clock
        self._spawn = spawn
        self.recorder = Recorder(api, clock, spawn)
        self.status = StatusWriter(api, clock, self.recorder)
        self.publisher: RoundPublisher = LeaseRoundPublisher(api, cache, clock)
        self.creation = PodCreation(cache, clock)
        self.owned = OwnedWriter(api, cache, clock, self.publisher.reading, pod_groups)
        self.queues = Queues(api, cache, clock, spawn, self.recorder, queues)
        self._pods = PodWriter(api, cache, handler_image)

    async def write_rest(
        self, job: Job, plan: Plan, state: JobState, may_project: bool, hurried: bool
    ) -> tuple[tuple[Event, ...], float | None]:
        """Write all but the status; what fails waits for itself (``write_backoff``). Returns the Events that
        came up meanwhile, and after how many seconds something that was postponed is due. Raises Stale."""
        turn = self.creation.first_turn(job, plan, state)
        if turn is not None:
            return (), turn
        backoff = state.writes.backoff
        failing_writes = backoff.failing_writes()
        before = self._batch(job, state)
        postponed: list[float | None] = []

        async def project() -> None:
            postponed.append(await self.publisher.write(job, plan.record, plan.members, state.published))

        if may_project:
            before.add(ROUND, project, hurried)
        else:
            backoff.done(ROUND)
        owned_writes, owned_delays = self.owned.due(job, plan, state.owned, before.events)
        for target, write in owned_writes.items():
            if write is not None:
                before.add(target, write)
            else:
                backoff.done(target)
        if claims.unread(job, state.pods) and not plan.status.finished:
            before.add(CLAIMS, lambda: claims.read(self._api, job, state.pods))
        else:
            backoff.done(CLAIMS)
        # None needs another, and all come before the pods.
        await before.wait()

        if self.creation.made(job):
            # The network policy is waited for before the first pods; later it is there.
            state.owned.protected = True
        group = self.owned.group(job, plan, state.owned)
        if group is not None:  # pods that are still to be made by an earlier pass keep theirs
            state.pods.group = group
        without_rights = self.owned.without_rights(plan, state.owned)
        due, delay = self.creation.due(
            job, plan, state, group is not None and self._ready_for_pods(job, state), without_rights
        )
        then = self._batch(job, state)
        for target, write in self._pods.writes(job, due, state):
            then.add(target, write, gated=True)
        await then.wait()
        warnings = () if plan.status.finished else new_warnings(job, state)
        if backoff.failing_writes() != failing_writes:
            postponed.append(FAILING_WRITES_SHOWN_SECONDS)
        again = backoff.wake_after(self._clock(), state.writes.under_way)
        events = (*warnings, *before.events, *then.events)
        return events, earliest(*postponed, *owned_delays, delay, again)

    def _batch(self, job: Job, state: JobState) -> Batch:
        def late(events: list[Event]) -> None:
            self.recorder.send(job, events, state.events)
            self._cache.retry(job)

        return Batch(job, state.writes, self._clock, self._spawn, late)

    def _ready_for_pods(self, job: Job, state: JobState) -> bool:
        """Whether a new pod would find its round, and would not be open to others."""
        return (
            self.publisher.is_there(job, state.published)
            and (state.owned.protected or self.owned.protects(job, state.owned))
            and not claims.unread(job, state.pods)
            and (job.grant is None or job.grant.placed)
        )


def earliest(*delays: float | None) -> float | None:
    """The shortest of the delays that there are."""
    return min((d for d in delays if d is not None), default=None)
