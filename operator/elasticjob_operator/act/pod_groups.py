"""PodGroups of Kubernetes (``scheduling.k8s.io``): whether the cluster has any, and which pods are in them.

A cluster serves them only if its feature gate and its API version are switched on. Which one it serves is
asked when it is needed first, and again with each comparison of what jobs own. Where PodGroups are not
switched on here, nothing is asked.

A job that asks for a group gets no pod without one: pods of half a job would hold nodes for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticjob_operator.act.job_state import OwnedState
from elasticjob_operator.act.owned import Needs, OwnedKind
from elasticjob_operator.act.owned_kinds import (
    GROUP,
    KINDS,
    MINIMUM,
    POD_GROUPS,
    SCHEDULING,
    gathers,
)
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Invalid, NotFound
from elasticjob_operator.plan.state.model import Job, Target

_OFF = (
    "the operator does not make any; have an administrator set the chart's value gangScheduling.kubernetes, "
    "or apply the job again without spec.gangScheduling"
)
_NOT_SERVED = (
    f"the cluster has none of {SCHEDULING}/{' or '.join(POD_GROUPS)}; have an administrator switch on the "
    "feature gate GenericWorkload and this API version (Kubernetes 1.36 or later), or apply the job again "
    "without spec.gangScheduling"
)
_NO_NEEDS = Needs(frozenset(), (), ())


class PodGroups:
    """See the module. ``on``: jobs may have them."""

    def __init__(self, api: Api, on: bool = False) -> None:
        self.on = on
        self.kind: OwnedKind | None = None
        """The kind that the cluster serves, as far as is known."""
        self._api = api

    @property
    def kinds(self) -> tuple[OwnedKind, ...]:
        """All that a job of this cluster may own."""
        return KINDS if self.kind is None else (*KINDS, self.kind)

    async def look(self) -> None:
        """Find out what the cluster serves. Raises ApiError."""
        self.kind = await self._served() if self.on else None

    async def find(self, job: Job) -> None:
        """The same for a job that asks for a group. Raises Invalid, in words for people, if there is none."""
        await self.look()
        if self.kind is None:
            what = f"the PodGroup of {job.key}"
            raise Invalid(what, 0, "NoPodGroups", _NOT_SERVED if self.on else _OFF)

    def lost(self, target: Target) -> None:
        """A write of this target was answered with 404: perhaps the cluster no longer serves the kind."""
        if target == GROUP:
            self.kind = None

    async def _served(self) -> OwnedKind | None:
        for version, kind in POD_GROUPS.items():
            try:
                found = await self._api.get(f"/apis/{SCHEDULING}/{version}")
            except NotFound:
                continue
            if any(one.get("name") == "podgroups" for one in found.get("resources") or ()):
                return kind
        return None

    def group_of(self, job: Job, owned: OwnedState, grouped: bool) -> str | None:
        """The PodGroup that a new pod of the job is to be in, "" for none; None if it has to be made first.
        ``grouped``: other pods are in it.

        A group that cannot be changed and gathers more pods than the job now needs would hold a replacement
        back for good. One that gathers fewer does no harm.
        """
        if not gathers(job):
            return ""
        there = None if self.kind is None else owned.written.get(self.kind.kind)
        if self.kind is None or there is None:
            return None
        if there == self.kind.known(self.kind.contents(job, _NO_NEEDS) or {}):
            return job_identity(job)
        if not (self.kind.fixed and grouped):
            return None
        return job_identity(job) if _minimum(there) <= job.spec.least else ""

    def fixed_minimum(self, owned: OwnedState) -> int | None:
        """How many pods the job's group gathers, if that can no longer be changed."""
        there = None if self.kind is None or not self.kind.fixed else owned.written.get(self.kind.kind)
        return None if there is None else _minimum(there)


def _minimum(known: Mapping[str, Any]) -> int:
    found = known.get("/".join(MINIMUM))
    return found if isinstance(found, int) else 0
