"""Which of a plan's pods may be created now.

A pod must find the round's Lease, and may write its own only when its name is in the Role. Pods of many jobs
are created one job after the other (``pod_creation_limiter``). A creation that has failed has a back-off of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from elasticjob_operator.act.job_state import JobState, WriteState
from elasticjob_operator.act.pod_creation_limiter import PodCreationLimiter
from elasticjob_operator.observe.cluster_cache import ClusterCache
from elasticjob_operator.plan.state.model import Action, CreatePod, Job, Plan


class PodCreation:
    """See the module."""

    def __init__(self, cache: ClusterCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self.limiter = PodCreationLimiter(clock, cache.behind)

    def made(self, job: Job) -> set[str]:
        """The job's pods that are there. A plan may be older than some: they were created by a write that no
        pass waited for (``Batch``)."""
        pods = self._cache.pods.of_job(job.namespace, job.name)
        return {name for name, pod in pods.items() if pod.owner == job.uid and pod.made}

    def replaces_pods(self, job: Job, plan: Plan, state: JobState) -> bool:
        """Whether the plan makes a pod whose turn has come, that was not refused before, and that may be
        missing because the job is gone."""
        if state.pods.none_made:
            return False  # none is made because another is missing
        reserved = state.pods.reserved
        if reserved is not None and (reserved.at > self._clock() or self._cache.behind()):
            return False
        new = _new(plan.actions, state.writes)
        return bool(new) and not {action.name for action in new} <= self.made(job)

    def first_turn(self, job: Job, plan: Plan, state: JobState) -> float | None:
        """Seconds until the turn of a job that has had no pod yet; None if it has come or is not needed.

        Before that, nothing is made for it: what a thousand jobs get beside their pods would be made before
        the first pod of any.
        """
        new = _new(plan.actions, state.writes)
        if len(new) < max(1, len(plan.actions)) or plan.status.current_round.number or self.made(job):
            return None
        state.pods.reserved, delay = self.limiter.turn(job.namespace, len(new), False, state.pods.reserved)
        return delay

    def due(
        self, job: Job, plan: Plan, state: JobState, ready: bool, without_rights: Collection[str]
    ) -> tuple[list[Action], float | None]:
        """The actions without the creation of pods whose turn has not come or that could not train, and after
        how many seconds the next pods are due. ``ready``: what all pods need is there."""
        held_back = {*without_rights, *self.made(job)}
        actions = [
            action
            for action in plan.actions
            if not isinstance(action, CreatePod) or (ready and action.name not in held_back)
        ]
        new = _new(actions, state.writes)
        trained = plan.status.current_round.number > 0 and len(new) < job.spec.pods
        count, state.pods.reserved, delay = self.limiter.due(
            job.namespace, len(new), trained, state.pods.reserved
        )
        later = set(new[count:])
        return [action for action in actions if action not in later], delay


def _new(actions: Sequence[Action], writes: WriteState) -> list[CreatePod]:
    """The creations of pods that are not under way and have not failed."""
    return [
        action
        for action in actions
        if isinstance(action, CreatePod)
        and action.target not in writes.backoff
        and action.target not in writes.under_way
    ]
