"""Carrying out a plan: status, then access and the round Lease, then pods and Leases, then Events.

The order is the protocol (docs/internals/writes.md): the status is the write-ahead log, the round Lease its
projection, and a pod's name is in the status and in its Role before the pod is created. A process that dies
between any two of these writes leaves something from which the next pass resumes. A failed write delays only
itself and what depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elasticjob_operator.act import claims, network
from elasticjob_operator.act.access import Access, access_of, grant
from elasticjob_operator.act.batch import Batch
from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.job_state import JobState, OwnedState
from elasticjob_operator.act.pod_creation import PodCreation
from elasticjob_operator.act.pods import PodWriter
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher, RoundPublisher
from elasticjob_operator.act.spawn import Spawn
from elasticjob_operator.act.spec_warnings import new_warnings
from elasticjob_operator.act.status_writer import StatusWriter
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.act.write_backoff import CLAIMS, POLICY, RIGHTS, ROUND
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.plan.state.model import Event, Job, Plan

FAILING_WRITES_SHOWN_SECONDS = 1.0
"""How soon there is another pass when other writes fail than this one knew of: the condition names them."""
MISSED_SECONDS = 5.0
"""How long members may take to come back until their rights are in doubt."""
DOUBTED_SECONDS = 60.0
"""How often rights are written again while members of a running round seem to lack theirs."""
ACCOUNT_SECONDS = 5.0
"""How often a service account is made again that is deleted again and again."""
UNNEEDED_SECONDS = 5.0
"""How long a name that is not needed may stay in the Role before a write is made for its removal alone."""


@dataclass(frozen=True)
class Written:
    """``events``: what came up while writing, beyond the plan's own. ``wake_after``: seconds until
    something that was postponed is due."""

    events: tuple[Event, ...]
    wake_after: float | None


class Applier:
    """Carries out plans, of any job. ``spawn`` runs what may outlive a pass."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        clock: Callable[[], float],
        handler_image: HandlerImage,
        spawn: Spawn,
    ) -> None:
        self._api = api
        self._cache = cache
        self._clock = clock
        self._spawn = spawn
        self.recorder = Recorder(api, clock, spawn)
        self.status = StatusWriter(api, clock, self.recorder)
        self.publisher: RoundPublisher = LeaseRoundPublisher(api, cache, clock)
        self.creation = PodCreation(cache, clock)
        self._pods = PodWriter(api, cache, handler_image)

    async def write_rest(
        self, job: Job, plan: Plan, state: JobState, may_project: bool, hurried: bool
    ) -> Written:
        """Write all but the status; what fails waits for itself (``write_backoff``). Raises Stale."""
        turn = self.creation.first_turn(job, plan, state)
        if turn is not None:
            return Written((), turn)
        owned, backoff = state.owned, state.writes.backoff
        failing_writes = backoff.failing_writes()
        before = self._batch(job, state)
        postponed: list[float | None] = []

        async def project() -> None:
            postponed.append(await self.publisher.write(job, plan.record, plan.members, state.published))

        if may_project:
            before.add(ROUND, project, hurried)
        else:
            backoff.done(ROUND)
        rights_left = self._rewrite_rights(plan, owned)
        account_left = self._look_for_account(job, owned)
        access = access_of(job, plan.pod_names, self._cache.service_accounts(job))
        unneeded = self._unneeded(access, owned)
        # A job that had ended before this process looked needs nothing more: no writes, at any takeover.
        over = plan.status.finished and owned.access is None
        if access != owned.access and unneeded is None and not over:
            before.add(RIGHTS, lambda: self._grant(job, access, owned, before.events))
        else:
            backoff.done(RIGHTS)
        if network.is_due(job, owned.network_policy) and not plan.status.finished:
            before.add(POLICY, lambda: self._restrict(job, owned))
        else:
            backoff.done(POLICY)
        if claims.unread(job, state.pods) and not plan.status.finished:
            before.add(CLAIMS, lambda: claims.read(self._api, job, state.pods))
        else:
            backoff.done(CLAIMS)
        # None needs another, and all come before the pods.
        await before.wait()

        without_rights = set(access.pod_names) - owned.granted
        due, wait = self.creation.due(job, plan, state, self._ready_for_pods(job, state), without_rights)
        then = self._batch(job, state)
        for target, write in self._pods.writes(job, due, state):
            then.add(target, write, gated=True)
        await then.wait()
        warnings = () if plan.status.finished else new_warnings(job, state)
        if backoff.failing_writes() != failing_writes:
            postponed.append(FAILING_WRITES_SHOWN_SECONDS)
        again = backoff.wake_after(self._clock(), state.writes.under_way)
        return Written(
            (*warnings, *before.events, *then.events),
            earliest(*postponed, rights_left, account_left, unneeded, wait, again),
        )

    def _batch(self, job: Job, state: JobState) -> Batch:
        def late(events: list[Event]) -> None:
            self.recorder.send(job, events, state.events)
            self._cache.retry(job)

        return Batch(job, state.writes, self._clock, self._spawn, late)

    def _ready_for_pods(self, job: Job, state: JobState) -> bool:
        """Whether a new pod would find its round, and would not be open to others. The network policy is
        waited for before the first pods; later it is there."""
        owned = state.owned
        if self.creation.made(job):
            owned.protected = True
        return (
            self.publisher.is_there(job, state.published)
            and (owned.protected or not network.is_due(job, owned.network_policy))
            and not claims.unread(job, state.pods)
        )

    def _rewrite_rights(self, plan: Plan, owned: OwnedState) -> float | None:
        """Members that do not rejoin, or cannot write, may have lost their rights: the Role may have been
        deleted, and the next look at it (``owned_snapshot``) may be minutes away. So it is written again,
        once for each round, or a minute. Seconds until then."""
        r = plan.status.current_round
        if plan.rights_in_doubt and self._clock() - owned.rights_doubted_at > DOUBTED_SECONDS:
            owned.rights_doubted_at, owned.access = self._clock(), None
        missed = r.phase == "Broken" and any(m.state == "Member" for m in plan.status.members())
        if not missed or owned.rights_rewritten_for == r.number:
            owned.missed_since = None
            return None
        if owned.missed_since is None:
            owned.missed_since = self._clock()
        left = owned.missed_since + MISSED_SECONDS - self._clock()
        if left > 0:
            return left
        owned.rights_rewritten_for, owned.access = r.number, None
        return None

    def account_in_doubt(self, job: Job, owned: OwnedState) -> bool:
        """Whether the job's own service account has gone: perhaps with the job, of whose end we have not
        heard yet. So the job is to be read before anything is made again."""
        return self._cache.accounts_gone(job) != owned.accounts_gone and not self._cache.has_account(job)

    def _look_for_account(self, job: Job, owned: OwnedState) -> float | None:
        """The job's own service account is made again as soon as the watch has shown that it is gone: unless
        the job goes, too, and not in a race with what deletes it. Seconds until then."""
        gone = self._cache.accounts_gone(job)
        if not self.account_in_doubt(job, owned) or job.finalizers or owned.access is None:
            owned.accounts_gone = gone
            return None
        left = owned.account_lost_at + ACCOUNT_SECONDS - self._clock()
        if left > 0:
            return left
        owned.accounts_gone, owned.account_lost_at = gone, self._clock()
        if owned.access.own_account:
            owned.account_lost, owned.access = True, None
        return None

    def _unneeded(self, access: Access, owned: OwnedState) -> float | None:
        """Seconds for which rights may stay that are no longer needed; None if access must be written now.

        A lost pod takes its name out of the Role. A write for that alone would hold up the next pass, the one
        that forms the round, by an answer of the API server; and the replacement's name comes soon.
        """
        if owned.access is None or access == owned.access or not owned.access.includes(access):
            owned.unneeded_since = None
            return None
        if owned.unneeded_since is None:
            owned.unneeded_since = self._clock()
        left = owned.unneeded_since + UNNEEDED_SECONDS - self._clock()
        return left if left > 0 else None

    async def _grant(self, job: Job, access: Access, owned: OwnedState, told: list[Event]) -> None:
        new = RIGHTS in owned.unmade
        owned.unmade.discard(RIGHTS)
        gone = self._cache.accounts_gone(job)
        await grant(self._api, job, access, owned.access, self.publisher.reading(job), new)
        # Meanwhile it may have been deleted (again).
        owned.access = access if self._cache.accounts_gone(job) == gone else None
        owned.written_at = self._clock()
        owned.granted = frozenset(access.pod_names)
        if owned.account_lost and access.own_account:
            owned.account_lost = False
            text = (
                f"the service account {job_identity(job)} was deleted (not by the operator) and is made "
                "again; the API server refuses the tokens of pods from before until the kubelet renews them"
            )
            told.append(Event("AccountMadeAgain", text, warning=True))

    async def _restrict(self, job: Job, owned: OwnedState) -> None:
        new = POLICY in owned.unmade
        owned.unmade.discard(POLICY)
        await network.restrict(self._api, job, new)
        owned.network_policy, owned.written_at = job.spec.network_policy, self._clock()
        owned.protected = True


def earliest(*delays: float | None) -> float | None:
    """The shortest of the delays that there are."""
    return min((d for d in delays if d is not None), default=None)
