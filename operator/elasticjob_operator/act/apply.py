"""Carrying out a plan: status, then access and the round Lease, then pods and Leases, then Events.

The order is the protocol (docs/internals/writes.md): the status is the write-ahead log, the round Lease its
projection, and a pod's name is in the status and in its Role before the pod is created. A process that dies
between any two of these writes leaves something from which the next pass resumes. A failed write delays only
itself and what depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elasticjob.contract.names import pod_name
from elasticjob.contract.round_record import RoundRecord
from elasticjob_operator.act import claims, network, template
from elasticjob_operator.act.access import Access, Rule, access_of, grant
from elasticjob_operator.act.batch import Batch, Spawn, record_write_failure
from elasticjob_operator.act.events import Recorder, log_event
from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.job_state import Memory, Stale, Vanished
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.pod_creation_limiter import PodCreationLimiter
from elasticjob_operator.act.pods import PodWriter
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher, Published, RoundPublisher
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.act.write_backoff import CLAIMS, POLICY, RIGHTS, ROUND, Target, creation_of
from elasticjob_operator.observe.client import JSON_PATCH, METADATA_ONLY, Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import ApiError, Conflict, NotFound
from elasticjob_operator.observe.objects import version_of
from elasticjob_operator.observe.spec import JobView
from elasticjob_operator.plan.charges import failure_rules
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.model import Action, CreatePod, Event, Job, Plan
from elasticjob_operator.plan.template import accelerators

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

log = logging.getLogger(__name__)


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
        self._publisher: RoundPublisher = LeaseRoundPublisher(api, cache, clock)
        self._pods = PodWriter(api, cache, handler_image)
        self._creation_limiter = PodCreationLimiter(clock, cache.behind)
        self._recorder = Recorder(api, clock)

    def published(self, job: Job) -> Published:
        """What the job's pods can read of its round."""
        return self._publisher.published(job)

    def reading(self, job: Job) -> list[Rule]:
        """The rules by which the job's pods read it."""
        return self._publisher.reading(job)

    def may_project(self, job: Job, record: RoundRecord, fresh: bool) -> bool:
        """Whether the round Lease is not ahead of this record. Raises Stale."""
        return self._publisher.check(job, record, fresh)

    async def write_status(self, view: JobView, plan: Plan) -> JobView:
        """The first half. Returns the job after the write. Raises Stale, Vanished, ApiError."""
        if plan.status == view.status:
            return view
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": view.job.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": str(view.version)},
            {"op": "add", "path": "/status", "value": status_json.dump(plan.status)},
        ]
        path = job_path(view.job.namespace, view.job.name) + "/status"
        try:
            # Nothing but the version can be new: the patch was for exactly the object that we know.
            answer = await self._api.patch(path, patch, JSON_PATCH, accept=METADATA_ONLY)
        except NotFound as error:
            raise Vanished(str(error)) from error
        except Conflict as error:
            raise Stale(str(error)) from error
        return replace(view, status=plan.status, version=version_of(answer["metadata"]))

    async def write_rest(
        self, job: Job, plan: Plan, memory: Memory, may_project: bool, hurried: bool
    ) -> Written:
        """The second half; what fails waits for itself (``write_backoff``). Raises Stale."""
        turn = self._first_turn(job, plan, memory)
        if turn is not None:
            return Written((), turn)
        failing_writes = memory.write_backoff.failing_writes()
        before = self._batch(job, memory)
        postponed: list[float | None] = []

        async def project() -> None:
            postponed.append(await self._publisher.write(job, plan.record, plan.members, memory))

        if may_project:
            before.add(ROUND, project, hurried)
        else:
            memory.write_backoff.done(ROUND)
        rights_left = self._rewrite_rights(plan, memory)
        account_left = self._look_for_account(job, memory)
        access = access_of(job, plan.pod_names, self._cache.service_accounts(job))
        unneeded = self._unneeded(access, memory)
        # A job that had ended before this process looked needs nothing more: no writes, at any takeover.
        over = plan.status.finished and memory.access is None
        if access != memory.access and unneeded is None and not over:
            before.add(RIGHTS, lambda: self._grant(job, access, memory, before.events))
        else:
            memory.write_backoff.done(RIGHTS)
        if network.is_due(job, memory.network_policy) and not plan.status.finished:
            before.add(POLICY, lambda: self._restrict(job, memory))
        else:
            memory.write_backoff.done(POLICY)
        if claims.unread(job, memory) and not plan.status.finished:
            before.add(CLAIMS, lambda: claims.read(self._api, job, memory))
        else:
            memory.write_backoff.done(CLAIMS)
        # None needs another, and all come before the pods.
        await before.wait()

        due, wait = self._due(job, self._possible(job, plan, memory), memory, plan)
        then = self._batch(job, memory)
        for target, write in self._pods.writes(job, due, memory):
            then.add(target, write, gated=True)
        await then.wait()
        warnings: tuple[Event, ...] = ()
        if not plan.status.finished:
            warnings = (*self._warnings(job, memory), *_uncounted(job, memory))
        events = (*warnings, *before.events, *then.events)
        if memory.write_backoff.failing_writes() != failing_writes:
            postponed.append(FAILING_WRITES_SHOWN_SECONDS)
        again = memory.write_backoff.wake_after(self._clock(), memory.under_way)
        return Written(events, earliest(*postponed, rights_left, account_left, unneeded, wait, again))

    def record_write_failure(self, job: Job, memory: Memory, target: Target, error: ApiError) -> None:
        """Record a write or a read that has failed, and send its Events."""
        self.send_events(job, memory, record_write_failure(job, memory, target, error, self._clock()))

    def _batch(self, job: Job, memory: Memory) -> Batch:
        def late(events: list[Event]) -> None:
            self.send_events(job, memory, events)
            self._cache.retry(job)

        return Batch(job, memory, self._clock, self._spawn, late)

    def send_events(self, job: Job, memory: Memory, events: Sequence[Event]) -> None:
        """Send Events. The pass does not wait for it."""
        if events:
            self._spawn(self._recorder.send(job, events, memory), "events")

    def _possible(self, job: Job, plan: Plan, memory: Memory) -> Sequence[Action]:
        """The actions without the making of pods that could not train, or would be open to others.

        A pod must find the round's Lease and may write its own only when its name is in the Role. The network
        policy is waited for before the first pods; later it is there.
        """
        there = self._made(job)
        if there:
            memory.protected = True
        not_yet = (set(access_of(job, plan.pod_names, ()).pod_names) - memory.granted) | there
        has_round = self._publisher.is_there(job, memory)
        ready = has_round and (memory.protected or not network.is_due(job, memory.network_policy))
        ready = ready and not claims.unread(job, memory)
        return [
            action
            for action in plan.actions
            if not isinstance(action, CreatePod)
            or (ready and pod_name(job.name, action.slot, action.attempt) not in not_yet)
        ]

    def _made(self, job: Job) -> set[str]:
        """The job's pods that are there. A plan may be older than some: they were still being made, behind
        the back of the pass before (``Batch``)."""
        pods = self._cache.pods.of_job(job.namespace, job.name)
        return {name for name, pod in pods.items() if pod.owner == job.uid and pod.made}

    def makes_pods(self, job: Job, plan: Plan, memory: Memory) -> bool:
        """Whether the plan makes a pod that is neither there nor being made, and was not refused before."""
        new = self._new(job, plan.actions, memory)
        return bool(new) and not {target.name for target in new} <= self._made(job)

    def _new(self, job: Job, actions: Sequence[Action], memory: Memory) -> dict[Target, CreatePod]:
        """The making of pods that is neither under way nor to be tried again."""
        creations = {
            creation_of(pod_name(job.name, action.slot, action.attempt)): action
            for action in actions
            if isinstance(action, CreatePod)
        }
        return {
            target: action
            for target, action in creations.items()
            if target not in memory.write_backoff and target not in memory.under_way
        }

    def _first_turn(self, job: Job, plan: Plan, memory: Memory) -> float | None:
        """Seconds until the turn of a job that has had no pod yet; None if it has come or is not needed.

        Before that, nothing is made for it: what a thousand jobs get beside their pods would be made before
        the first pod of any.
        """
        new = self._new(job, plan.actions, memory)
        if len(new) < max(1, len(plan.actions)) or plan.status.current_round.number or self._made(job):
            return None
        memory.pods_reserved, wait = self._creation_limiter.turn(
            job.namespace, len(new), False, memory.pods_reserved
        )
        return wait

    def _due(
        self, job: Job, actions: Sequence[Action], memory: Memory, plan: Plan
    ) -> tuple[Sequence[Action], float | None]:
        """The actions without the creation of pods whose turn has not come (``pod_creation_limiter``), and
        after how many seconds the next are due. A creation that has failed has a back-off of its own."""
        new = list(self._new(job, actions, memory).values())
        trained = plan.status.current_round.number > 0 and len(new) < job.spec.pods
        due, memory.pods_reserved, wait = self._creation_limiter.due(
            job.namespace, len(new), trained, memory.pods_reserved
        )
        later = set(new[due:])
        return [action for action in actions if action not in later], wait

    async def refresh_round(self, job: Job) -> None:
        """Read the round Lease from the API server."""
        await self._publisher.refresh(job)

    def _rewrite_rights(self, plan: Plan, memory: Memory) -> float | None:
        """Members that do not rejoin, or cannot write, may have lost their rights: the Role may have been
        deleted, and the next look at it (``owned_snapshot``) may be minutes away. So it is written again,
        once for each round, or a minute. Seconds until then."""
        r = plan.status.current_round
        if plan.rights_in_doubt and self._clock() - memory.rights_doubted_at > DOUBTED_SECONDS:
            memory.rights_doubted_at, memory.access = self._clock(), None
        missed = r.phase == "Broken" and any(m.state == "Member" for m in plan.status.members())
        if not missed or memory.rights_rewritten_for == r.number:
            memory.missed_since = None
            return None
        if memory.missed_since is None:
            memory.missed_since = self._clock()
        left = memory.missed_since + MISSED_SECONDS - self._clock()
        if left > 0:
            return left
        memory.rights_rewritten_for, memory.access = r.number, None
        return None

    def account_in_doubt(self, job: Job, memory: Memory) -> bool:
        """Whether the job's own service account has gone: perhaps with the job, of whose end we have not
        heard yet. So the job is to be read before anything is made again."""
        return self._cache.accounts_gone(job) != memory.accounts_gone and not self._cache.has_account(job)

    def _look_for_account(self, job: Job, memory: Memory) -> float | None:
        """The job's own service account is made again as soon as the watch has shown that it is gone: unless
        the job goes, too, and not in a race with what deletes it. Seconds until then."""
        gone = self._cache.accounts_gone(job)
        if not self.account_in_doubt(job, memory) or job.finalizers or memory.access is None:
            memory.accounts_gone = gone
            return None
        left = memory.account_lost_at + ACCOUNT_SECONDS - self._clock()
        if left > 0:
            return left
        memory.accounts_gone, memory.account_lost_at = gone, self._clock()
        if memory.access.own_account:
            memory.account_lost, memory.access = True, None
        return None

    def _unneeded(self, access: Access, memory: Memory) -> float | None:
        """Seconds for which rights may stay that are no longer needed; None if access must be written now.

        A lost pod takes its name out of the Role. A write for that alone would hold up the next pass, the one
        that forms the round, by an answer of the API server; and the replacement's name comes soon.
        """
        if memory.access is None or access == memory.access or not memory.access.includes(access):
            memory.unneeded_since = None
            return None
        if memory.unneeded_since is None:
            memory.unneeded_since = self._clock()
        left = memory.unneeded_since + UNNEEDED_SECONDS - self._clock()
        return left if left > 0 else None

    async def _grant(self, job: Job, access: Access, memory: Memory, told: list[Event]) -> None:
        new = RIGHTS in memory.unmade
        memory.unmade.discard(RIGHTS)
        gone = self._cache.accounts_gone(job)
        await grant(self._api, job, access, memory.access, self.reading(job), new)
        # Meanwhile it may have been deleted (again).
        memory.access = access if self._cache.accounts_gone(job) == gone else None
        memory.owned_written_at = self._clock()
        memory.granted = frozenset(access.pod_names)
        if memory.account_lost and access.own_account:
            memory.account_lost = False
            text = (
                f"the service account {job_identity(job)} was deleted (not by the operator) and is made "
                "again; the API server refuses the tokens of pods from before until the kubelet renews them"
            )
            told.append(Event("AccountMadeAgain", text, warning=True))

    async def _restrict(self, job: Job, memory: Memory) -> None:
        new = POLICY in memory.unmade
        memory.unmade.discard(POLICY)
        await network.restrict(self._api, job, new)
        memory.network_policy, memory.owned_written_at = job.spec.network_policy, self._clock()
        memory.protected = True

    def _warnings(self, job: Job, memory: Memory) -> tuple[Event, ...]:
        """What is wrong with the spec, said once for each generation."""
        if memory.warned_generation == job.generation:
            return ()
        memory.warned_generation = job.generation
        found = (
            *(Event("FlagOverridesEnvironment", text, warning=True) for text in template.warnings(job)),
            *(Event("PythonPathReplaced", text, warning=True) for text in template.path_warnings(job)),
            *(Event("NoSuchContainer", text, warning=True) for text in template.misnamed_container(job)),
            *(Event("InvalidRule", text, warning=True) for text in failure_rules.problems(job.spec.rules)),
        )
        for event in found:
            log_event(job, event)
        return found


def _uncounted(job: Job, memory: Memory) -> tuple[Event, ...]:
    """That GPUs are not counted, said when that changes."""
    if memory.counted_generation == job.generation or claims.unread(job, memory):
        return ()
    before, memory.uncounted = memory.uncounted, accelerators.uncounted(job, memory.claims)
    memory.counted_generation = job.generation
    if memory.uncounted in ("", before):
        return ()
    event = Event("GPUsNotCounted", memory.uncounted, warning=True)
    log_event(job, event)
    return (event,)


def earliest(*delays: float | None) -> float | None:
    """The shortest of the delays that there are."""
    return min((d for d in delays if d is not None), default=None)
