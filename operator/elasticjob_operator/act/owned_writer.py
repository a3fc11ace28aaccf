"""Which of the objects that a job owns have to be written, and when.

What was written is remembered, so that a pass that changes nothing sends no request. An object that is
changed or deleted is restored at the next comparison (``owned_snapshot``), within about five minutes; rights
that members seem to lack, and an account of which the watch shows that it is gone, sooner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from elasticjob_operator.act.job_state import OwnedState
from elasticjob_operator.act.owned import Contents, Needs, OwnedKind, Rule, write_together
from elasticjob_operator.act.owned_kinds import (
    ACCOUNT,
    GROUP,
    NETWORK_POLICY,
    RIGHTS,
    ROLE,
    TARGETS,
    gathers,
    wanted,
    writers,
    writers_in,
)
from elasticjob_operator.act.pod_groups import PodGroups
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.observe.errors import NotFound
from elasticjob_operator.plan.pods.gang import minimum
from elasticjob_operator.plan.state.model import Event, Job, Plan, Pod, Target

MISSED_SECONDS = 5.0
"""How long members may take to come back until their rights are in doubt."""
DOUBTED_SECONDS = 60.0
"""How often rights are written again while members of a running round seem to lack theirs."""
ACCOUNT_SECONDS = 5.0
"""How often a service account is made again that is deleted again and again."""
UNNEEDED_SECONDS = 5.0
"""How long a name that is not needed may stay in the Role before a write is made for its removal alone."""

Write = Callable[[], Awaitable[None]]


class OwnedWriter:
    """See the module. ``reading``: the rules by which a job's pods read their round. ``pod_groups``: those
    that jobs may have."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        clock: Callable[[], float],
        reading: Callable[[Job], list[Rule]],
        pod_groups: Collection[str] = (),
    ) -> None:
        self.groups = PodGroups(api, pod_groups)
        self._api = api
        self._cache = cache
        self._clock = clock
        self._reading = reading

    def due(
        self, job: Job, plan: Plan, owned: OwnedState, events: list[Event]
    ) -> tuple[dict[Target, Write | None], list[float | None]]:
        """Return the write that is due, or None, for each target, and after how many seconds others are.
        ``events`` gets the Events about a write."""
        delays = [self._rewrite_rights(plan, owned), self._look_for_account(job, owned)]
        needs = self._needs(job, plan)
        changes = {
            kind: contents
            for kind, contents in wanted(job, needs, self.groups.kinds).items()
            if not owned.is_written(kind, None if contents is None else kind.known(contents))
            and not (kind.fixed and needs.grouped and owned.written.get(kind))
        }
        if plan.status.finished:
            # A job that had ended before this process looked needs nothing more: no writes, at any takeover.
            known = owned.written.get(ROLE) is not None
            changes = {kind: new for kind, new in changes.items() if known and kind.target == RIGHTS}
        unneeded = self._unneeded(changes, owned)
        if unneeded is not None:
            changes = {kind: new for kind, new in changes.items() if kind.target != RIGHTS}
        writes: dict[Target, Write | None] = dict.fromkeys(TARGETS)
        for target in TARGETS:
            together = {kind: new for kind, new in changes.items() if kind.target == target}
            if together:
                writes[target] = partial(self._write, job, target, together, owned, events)
        if not gathers(job):
            for kind in self.groups.kinds:  # when it does again, it is not known what is there by then
                if kind.target == GROUP:
                    owned.written.pop(kind, None)
        elif self.groups.kind_of(job) is None and not plan.status.finished:
            writes[GROUP] = partial(self._find_groups, job)
        return writes, [*delays, unneeded]

    def without_rights(self, plan: Plan, owned: OwnedState) -> set[str]:
        """The pods that are to be in the Role and are not yet."""
        return set(writers(plan.pod_names)) - owned.granted

    def protects(self, job: Job, owned: OwnedState) -> bool:
        """Whether new pods of the job have the network policy that they should have."""
        needs = Needs(frozenset(), (), ())
        return not NETWORK_POLICY.due(job, needs) or owned.is_written(
            NETWORK_POLICY, NETWORK_POLICY.contents(job, needs)
        )

    def group(self, job: Job, plan: Plan, owned: OwnedState) -> str | None:
        """The PodGroup that a new pod is to be in, "" for none; None if it has to be made first."""
        if not gathers(job):
            return ""
        live = self._live_pods(job)
        if any(pod.group != job_identity(job) for pod in live):
            return ""  # beside pods that are in none it would never gather enough
        needs = Needs(frozenset(), (), (), grouped=bool(live), least=minimum(job, plan.status))
        return self.groups.group_of(job, owned, needs)

    def account_in_doubt(self, job: Job, owned: OwnedState) -> bool:
        """Whether the job's own service account has gone: perhaps with the job, of whose end we have not
        heard yet. So the job is to be read before anything is made again."""
        return self._cache.accounts_gone(job) != owned.accounts_gone and not self._cache.has_account(job)

    def _needs(self, job: Job, plan: Plan) -> Needs:
        accounts, reading = self._cache.service_accounts(job), tuple(self._reading(job))
        return Needs(plan.pod_names, accounts, reading, self._grouped(job), minimum(job, plan.status))

    def _grouped(self, job: Job) -> bool:
        """Whether pods are in the job's PodGroup, so that it can't be made again."""
        return gathers(job) and any(pod.group == job_identity(job) for pod in self._live_pods(job))

    def _live_pods(self, job: Job) -> list[Pod]:
        pods = self._cache.pods.of_job(job.namespace, job.name).values()
        own = (seen.pod for seen in pods if seen.owner == job.uid)
        return [pod for pod in own if not (pod.ended or pod.deleting)]

    async def _find_groups(self, job: Job) -> None:
        await self.groups.find(job)
        self._cache.retry(job)

    def _rewrite_rights(self, plan: Plan, owned: OwnedState) -> float | None:
        """Members that do not rejoin, or cannot write, may have lost their rights: the Role may have been
        deleted, and the next look at it (``owned_snapshot``) may be minutes away. So it is written again,
        once for each round, or a minute. Seconds until then."""
        r = plan.status.current_round
        if plan.rights_in_doubt and self._clock() - owned.rights_doubted_at > DOUBTED_SECONDS:
            owned.rights_doubted_at = self._clock()
            owned.doubt_rights()
        missed = r.phase == "Broken" and any(m.state == "Member" for m in plan.status.members())
        if not missed or owned.rights_rewritten_for == r.number:
            owned.missed_since = None
            return None
        if owned.missed_since is None:
            owned.missed_since = self._clock()
        left = owned.missed_since + MISSED_SECONDS - self._clock()
        if left > 0:
            return left
        owned.rights_rewritten_for = r.number
        owned.doubt_rights()
        return None

    def _look_for_account(self, job: Job, owned: OwnedState) -> float | None:
        """The job's own service account is made again as soon as the watch has shown that it is gone: unless
        the job goes, too, and not in a race with what deletes it. Seconds until then."""
        gone, known = self._cache.accounts_gone(job), owned.written.get(ACCOUNT) is not None
        if not self.account_in_doubt(job, owned) or job.finalizers or not known:
            owned.accounts_gone = gone
            return None
        left = owned.account_lost_at + ACCOUNT_SECONDS - self._clock()
        if left > 0:
            return left
        owned.accounts_gone, owned.account_lost_at, owned.account_lost = gone, self._clock(), True
        owned.doubt_rights()
        return None

    def _unneeded(self, changes: Mapping[OwnedKind, Contents], owned: OwnedState) -> float | None:
        """Seconds for which rights may stay that are no longer needed; None if rights must be written now.

        A lost pod takes its name out of the Role. A write for that alone would hold up the next pass, the one
        that forms the round, by an answer of the API server; and the replacement's name comes soon.
        """
        rights = {kind: new for kind, new in changes.items() if kind.target == RIGHTS}
        if not rights or not all(
            _lacks_names_only(new, owned.written.get(kind)) for kind, new in rights.items()
        ):
            owned.unneeded_since = None
            return None
        if owned.unneeded_since is None:
            owned.unneeded_since = self._clock()
        left = owned.unneeded_since + UNNEEDED_SECONDS - self._clock()
        return left if left > 0 else None

    async def _write(
        self,
        job: Job,
        target: Target,
        changes: Mapping[OwnedKind, Contents],
        owned: OwnedState,
        events: list[Event],
    ) -> None:
        expect_missing = target in owned.unmade
        owned.unmade.discard(target)
        gone = self._cache.accounts_gone(job)
        try:
            there = await write_together(self._api, job, changes, expect_missing, self._grouped(job))
        except NotFound:
            self.groups.lost(job, target)
            raise
        owned.written_at = self._clock()
        owned.written.update(there)
        if ROLE in changes:
            owned.granted = frozenset(writers_in(changes[ROLE], self._reading(job)) or ())
        if NETWORK_POLICY in changes:
            owned.protected = True
        if ACCOUNT in changes and owned.account_lost:
            owned.account_lost = False
            text = (
                f"the service account {job_identity(job)} was deleted (not by the operator) and is made "
                "again; the API server refuses the tokens of pods from before until the kubelet renews them"
            )
            events.append(Event("AccountMadeAgain", text, warning=True))
        if target == RIGHTS and self._cache.accounts_gone(job) != gone:
            owned.doubt_rights()  # meanwhile it may have been deleted (again)


def _lacks_names_only(new: Contents, old: Contents) -> bool:
    """Whether the new contents are the old ones without some names of pods or accounts."""
    parts, old_parts = set(_parts(new)), set(_parts(old))
    lacking = old_parts - parts
    return parts <= old_parts and all(path and path[-1] in ("resourceNames", "name") for path, _ in lacking)


def _parts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each single value in it, with its path; its place in a list does not count."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, (*path, key))
    elif isinstance(value, list):
        for part in value:
            yield from _parts(part, path)
    else:
        yield path, value
