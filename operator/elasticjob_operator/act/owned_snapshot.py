"""What all jobs own beside their pods, read in one list of each kind instead of a write for each object.

These objects may have been changed or deleted, or written by a previous operator. Objects that already are as
this operator would write them are not written again. A snapshot is taken when an operator begins to lead, and
about every five minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from elasticjob.contract.names import JOB_LABEL
from elasticjob_operator.act.job_state import OwnedState
from elasticjob_operator.act.owned import Contents, OwnedKind, Rule
from elasticjob_operator.act.owned_kinds import GROUP, KINDS, ROLE, writers_in
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Forbidden, NotFound
from elasticjob_operator.observe.fields import first_owner_of
from elasticjob_operator.observe.lists import read_list
from elasticjob_operator.plan.state.model import Job

log = logging.getLogger(__name__)


class OwnedSnapshot:
    """What was there of these ``kinds`` at some time from ``began`` on."""

    def __init__(self, began: float, kinds: Sequence[OwnedKind] = KINDS) -> None:
        self.began = began
        self._kinds = tuple(kinds)
        self._found: dict[tuple[str, str], dict[OwnedKind, Contents]] = {}
        """Contents by the owner's UID and the object's name, then by kind."""

    def take(self, kind: OwnedKind, raw: Json) -> None:
        """An object of a list. One that is being deleted goes sooner or later: it counts as gone."""
        meta = raw["metadata"]
        if meta.get("deletionTimestamp"):
            return
        self._found.setdefault((first_owner_of(meta), str(meta["name"])), {})[kind] = kind.known(raw)

    def compare(self, job: Job, owned: OwnedState, reading: list[Rule]) -> None:
        """Remember of the job's objects what is there. What was written since is not known better by this.
        ``reading``: see ``Needs``."""
        if owned.written_at >= self.began:
            return
        found = self._found.get((job.uid, job_identity(job)), {})
        owned.written = {kind: found.get(kind) for kind in self._kinds}
        names = writers_in(owned.written[ROLE], reading)
        if names is not None:
            owned.granted = frozenset(names)
        else:
            owned.doubt_rights()


async def list_owned(
    api: Api, namespace: str, clock: Callable[[], float], kinds: Sequence[OwnedKind] = KINDS
) -> OwnedSnapshot:
    """Take a snapshot. Without the right to, nothing is found, and all is written again. Raises ApiError."""
    result = OwnedSnapshot(clock(), kinds)
    scope = f"/namespaces/{namespace}" if namespace else ""
    query = {"labelSelector": JOB_LABEL}

    def taking(kind: OwnedKind) -> Callable[[Json], None]:
        return lambda raw: result.take(kind, raw)

    for kind in kinds:
        try:
            await read_list(api, kind.path.format(scope), taking(kind), query)
        except NotFound:
            if kind.target != GROUP:
                raise  # of PodGroups another API server may have said that there are some
        except Forbidden as error:
            what = f"{kind.kind} ({kind.api_version})"
            log.warning("cannot list the %s of jobs, so all of them are rewritten: %s", what, error)
    return result
