"""PodGroups: whose the cluster has, and which pods are in them.

A job says whose PodGroup it asks for (``spec.gangScheduling``), and the cluster may have none of these: those
of Kubernetes are behind a feature gate and an API version, those of other schedulers are installed with them.
What it serves is asked when it is needed first, and again with each comparison of what jobs own. Of PodGroups
that are not switched on here, nothing is asked.

A job that asks for a group gets no pod without one: pods of half a job would hold nodes for nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from elasticjob_operator.act.job_state import OwnedState
from elasticjob_operator.act.owned import Contents, Needs, OwnedKind
from elasticjob_operator.act.owned_kinds import GROUP, KINDS, POD_GROUPS
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Invalid, NotFound
from elasticjob_operator.plan.state.model import GangScheduling, Job, Target

_REMEDIES: dict[str, str] = {
    GangScheduling.KUBERNETES: (
        "switch on the feature gate GenericWorkload and this API version (Kubernetes 1.36 or later)"
    ),
    GangScheduling.COSCHEDULING: (
        "install the resource definition PodGroup of scheduler-plugins, and a scheduler with its plugin "
        "Coscheduling"
    ),
    GangScheduling.VOLCANO: "install Volcano",
}
"""What an administrator does where the cluster has none."""
_WITHOUT = "suspend the job, set spec.gangScheduling to None and resume it"


class PodGroups:
    """See the module. ``on``: those that jobs may have, by spec.gangScheduling."""

    def __init__(self, api: Api, on: Collection[str] = ()) -> None:
        self.on = frozenset(on)
        self._served: dict[str, OwnedKind] = {}
        """Those that the cluster serves, as far as is known."""
        self._api = api

    @property
    def kinds(self) -> tuple[OwnedKind, ...]:
        """All that a job of this cluster may own."""
        return (*KINDS, *self._served.values())

    def kind_of(self, job: Job) -> OwnedKind | None:
        """The one that the job asks for; None if it asks for none, or the cluster is not known to have it."""
        return self._served.get(job.spec.gang_scheduling)

    async def look(self) -> None:
        """Find out what the cluster serves. Raises ApiError."""
        for gang in sorted(self.on):
            await self._look_for(gang)

    async def find(self, job: Job) -> None:
        """The same for a job that asks for a group. Raises ApiError; Invalid, in words for people, if there
        is none."""
        gang = job.spec.gang_scheduling
        if gang in self.on:
            await self._look_for(gang)
        if self.kind_of(job) is None:
            text = _not_served(gang) if gang in self.on else _off(gang)
            raise Invalid(f"the PodGroup of {job.key}", 0, "NoPodGroups", text)

    def lost(self, job: Job, target: Target) -> None:
        """A write of this target was answered with 404: perhaps the cluster no longer serves the kind."""
        if target == GROUP:
            self._served.pop(job.spec.gang_scheduling, None)

    async def _look_for(self, gang: str) -> None:
        found = await self._served_of(gang)
        if found is None:
            self._served.pop(gang, None)
        else:
            self._served[gang] = found

    async def _served_of(self, gang: str) -> OwnedKind | None:
        for kind in POD_GROUPS[gang]:
            try:
                found = await self._api.get(f"/apis/{kind.api_version}")
            except NotFound:
                continue
            if any(one.get("name") == "podgroups" for one in found.get("resources") or ()):
                return kind
        return None

    def group_of(self, job: Job, owned: OwnedState, needs: Needs) -> str | None:
        """The PodGroup of a new pod, if the job asks for one: "" for none, None if it has to be made first.

        A group that cannot be changed and gathers more pods than the job now needs would hold a replacement
        back for good. One that gathers fewer does no harm.
        """
        kind = self.kind_of(job)
        there = None if kind is None else owned.written.get(kind)
        if kind is None or there is None:
            return None
        if there == kind.known(kind.contents(job, needs) or {}):
            return job_identity(job)
        if not (kind.fixed and needs.grouped):
            return None
        return job_identity(job) if _minimum(kind, there) <= needs.least else ""

    def fixed_minimum(self, job: Job, owned: OwnedState) -> int | None:
        """How many pods the job's group gathers, if that can no longer be changed."""
        kind = self.kind_of(job)
        there = None if kind is None or not kind.fixed else owned.written.get(kind)
        return None if kind is None or there is None else _minimum(kind, there)


def _off(gang: str) -> str:
    return (
        "the operator does not make any; have an administrator set the chart's value "
        f"gangScheduling.{gang.lower()}, or {_WITHOUT}"
    )


def _not_served(gang: str) -> str:
    versions = " or ".join(kind.api_version for kind in POD_GROUPS[gang])
    return f"the cluster has none of {versions}; have an administrator {_REMEDIES[gang]}, or {_WITHOUT}"


def _minimum(kind: OwnedKind, known: Contents) -> int:
    found = kind.leaf_of(known)
    return found if isinstance(found, int) else 0
