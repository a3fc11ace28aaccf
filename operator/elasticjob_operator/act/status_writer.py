"""Writes the status, the first write of a pass: a JSON patch of exactly the object that was planned on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from elasticjob_operator.act.events import Recorder
from elasticjob_operator.act.job_state import JobState, Stale, Vanished
from elasticjob_operator.act.paths import job_path
from elasticjob_operator.act.write_backoff import STATUS
from elasticjob_operator.act.write_failures import record_write_failure
from elasticjob_operator.observe.client import JSON_PATCH, METADATA_ONLY, Api
from elasticjob_operator.observe.errors import ApiError, Conflict, NotFound, NotLeading, TooLarge
from elasticjob_operator.observe.fields import version_of
from elasticjob_operator.observe.spec import JobView
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.status import JobStatus

_SMALLEST_STATUS = 16 * 1024
"""Bytes; no status is made smaller than this."""


class StatusWriter:
    """See the module."""

    def __init__(self, api: Api, clock: Callable[[], float], recorder: Recorder) -> None:
        self._api = api
        self._clock = clock
        self._recorder = recorder

    async def write(self, view: JobView, status: JobStatus, state: JobState, hurried: bool) -> JobView | None:
        """Return the job after the write; None if the write failed or has to wait. ``hurried``: there is news
        of the job. Raises Stale, Vanished, NotLeading."""
        backoff = state.writes.backoff
        if status != view.status and not backoff.due(STATUS, self._clock(), hurried):
            return None
        try:
            written = view if status == view.status else await self._patch(view, status)
        except NotLeading:
            raise
        except ApiError as error:
            if isinstance(error, TooLarge) and state.max_status_bytes > _SMALLEST_STATUS:
                # The spec, or what else is in the object, has taken the room.
                state.max_status_bytes //= 2
            events = record_write_failure(view.job, state.writes, STATUS, error, self._clock())
            self._recorder.send(view.job, events, state.events)
            return None
        backoff.done(STATUS)
        return written

    async def _patch(self, view: JobView, status: JobStatus) -> JobView:
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": view.job.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": str(view.version)},
            {"op": "add", "path": "/status", "value": status_json.dump(status)},
        ]
        path = job_path(view.job.namespace, view.job.name) + "/status"
        try:
            # Nothing but the version can be new: the patch was for exactly the object that we know.
            answer = await self._api.patch(path, patch, JSON_PATCH, accept=METADATA_ONLY)
        except NotFound as error:
            raise Vanished(str(error)) from error
        except Conflict as error:
            raise Stale(str(error)) from error
        return replace(view, status=status, version=version_of(answer["metadata"]))
