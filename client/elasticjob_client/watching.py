"""A job that is watched, through watches that end: where the next one begins, and when.

A version of the job is no good beginning: the API server calls one too old that is from before its own start,
which is that of each job that has not changed since. That of a list is as new as the list.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import Status

from elasticjob_client.decoding import ready
from elasticjob_client.errors import NoServer, TooOld
from elasticjob_client.patience import LONGEST_PAUSE_SECONDS, Patience
from elasticjob_client.resource import ElasticJob

LASTING_SECONDS = 5.0
"""A watch that was open for so long has not failed."""


class _Event(msgspec.Struct):
    type: str
    object: dict[str, Any]


class Watch:
    """``job``: as it was last seen. ``version``: from where the next watch begins."""

    def __init__(self, job: ElasticJob, patience: Patience) -> None:
        self.job, self.version = job, job.metadata.resource_version
        self._patience = patience
        self._opened: float | None = None
        self._failed = 0

    def opened(self) -> None:
        """The server has begun to answer."""
        self._opened = time.monotonic()
        self._patience.seems_back()

    def event(self, line: str) -> str:
        """Take in a line of a watch, and give what has happened, such as DELETED."""
        found = msgspec.json.decode(line, type=ready(_Event))
        if found.type == "ERROR":
            raise ApiError(status=msgspec.convert(found.object, ready(Status)))
        self._seen(ElasticJob.from_dict(found.object))
        return found.type

    def looked(self, job: ElasticJob, version: str) -> bool:
        """Take in what a list says after a watch has ended. Returns whether the job has changed."""
        self.version = version
        if job.metadata.resource_version == self.job.metadata.resource_version:
            return False
        self._seen(job)
        return True

    def _seen(self, job: ElasticJob) -> None:
        self.job, self._failed = job, 0
        self._patience.answered()

    def ended(self, error: NoServer | None) -> float:
        """The seconds until the next watch. Raises the error of one that fails again and again.

        The first time means nothing: something in between may be impatient.
        """
        if self._opened is not None and time.monotonic() - self._opened >= LASTING_SECONDS:
            self._failed = 0
            self._patience.answered()
        self._opened = None
        self._failed += 1
        if error is not None and not isinstance(error, TooOld) and self._failed > 1:
            return self._patience.pause(error)
        return min(self._failed - 1.0, LONGEST_PAUSE_SECONDS)

    def away(self, error: NoServer) -> float:
        """The seconds until the next look. Raises the error if it has been so for too long."""
        return self._patience.pause(error)
