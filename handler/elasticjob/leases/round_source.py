"""The source of round records: one small interface, implemented with the round Lease.

A source never gives up: without a new record nothing changes for a running round (I5).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from elasticjob.api.auth_errors import AuthErrors
from elasticjob.api.errors import ApiError
from elasticjob.api.leases import Lease, LeaseApi
from elasticjob.api.retry import pause
from elasticjob.contract import names
from elasticjob.contract.fields import RecordError
from elasticjob.contract.reports import MAX_MESSAGE
from elasticjob.contract.round_record import MemberList, RoundRecord
from elasticjob.contract.text import one_line

logger = logging.getLogger(__name__)

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
REOPEN_SECONDS = 10.0
"""Seconds between two reopenings of a watch because of a doubt: the doubt may be wrong every time."""
HEARD_SECONDS = 3.0
"""How long a watch may bring nothing after an announcement."""
QUIET_SECONDS, QUIET_RENEWALS = 20.0, 4
"""How long, or for how many renewals, a watch may bring nothing while a participant waits."""


MAX_SENTENCE, MAX_CAUSE = 2 * MAX_MESSAGE, 100
"""Characters of a record's sentences: they may quote the message of a report."""


class RoundSource(Protocol):
    """Brings the record of the round. It calls a function that it was made with, from a thread of its own,
    for every readable record, and perhaps another when a record was deleted."""

    @property
    def last_error(self) -> str:
        """The text of the last error; "" while there is none."""

    @property
    def obstacle(self) -> str:
        """What keeps this participant from the next round, in a sentence, if the source knows it."""

    @property
    def auth_errors(self) -> AuthErrors:
        """How long requests have been answered 401 or 403."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Those of the participants' Leases."""

    @property
    def introduction(self) -> Mapping[str, str]:
        """Annotations of this participant's Lease that never change."""

    def said(self, annotations: Mapping[str, str | None]) -> None:
        """What this agent writes into its Lease, from the thread that asks for it."""

    def start(self) -> None:
        """Start to bring records."""

    def stop(self) -> None:
        """Bring no more."""

    def healthy_seconds(self) -> float:
        """How many seconds the source has had no gap; 0 while it has one."""

    def verify(self, since: float) -> None:
        """Check that the source lives: something happened at ``since`` (monotonic) that a record shows."""

    def verify_while_waiting(self, now: float, announced: float, renew_seconds: float) -> None:
        """Check that the source lives: this agent has waited for a record since ``announced``."""

    def members(self) -> MemberList:
        """The ids of a large round's members, which its record does not have. Raises ApiError,
        RecordError."""


class LeaseRoundSource:
    """Watches the job's round Lease, or the one with the name ``lease``. ``reader`` reads while the watch of
    ``api`` goes on. ``changed`` is called with each record, ``deleted`` when the Lease was deleted, ``seen``
    with each state of the Lease before them."""

    introduction: Mapping[str, str] = {}
    obstacle = ""

    def __init__(
        self,
        api: LeaseApi,
        reader: LeaseApi,
        job: str,
        changed: Callable[[RoundRecord], None],
        deleted: Callable[[], None] = lambda: None,
        lease: str = "",
        seen: Callable[[Lease], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._reader = reader
        self._job = job
        self._lease = lease or names.round_lease(job)
        self.labels = {names.JOB_LABEL: job}
        self._changed = changed
        self._deleted = deleted
        self._seen = seen
        self._stop = threading.Event()
        self._healthy_since: float | None = None
        self._last_event_at = self._reopened_at = float("-inf")
        self._spread = random.uniform(1.0, 1.5)
        self.auth_errors = AuthErrors()
        self.last_error = self._last_unexpected = ""
        self._thread = threading.Thread(target=self._run, name="elasticjob-watch", daemon=True)

    def said(self, annotations: Mapping[str, str | None]) -> None:
        """The operator reads it in the Lease."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and drop the callbacks, whose owner refers to this object: both can go together."""
        self._stop.set()
        self._api.stop()
        self._changed, self._deleted, self._seen = (lambda _: None), (lambda: None), (lambda _: None)
        if self._thread.ident is not None:
            self._thread.join(timeout=2)

    def healthy_seconds(self) -> float:
        """How many seconds the watch has had no gap; 0 while it has one."""
        since = self._healthy_since
        return 0.0 if since is None else time.monotonic() - since

    def verify(self, since: float) -> None:
        """Reopen the watch if it has brought no event since ``since`` (monotonic), when something happened
        that the record shows.

        It may hang on a dead connection: a server can vanish without closing it, and the next bookmark is due
        in a minute. A participant that waits for it may count as lost by then.
        """
        now = time.monotonic()
        if (
            self._healthy_since is None
            or self._last_event_at >= since
            or now - self._reopened_at < REOPEN_SECONDS
        ):
            return
        self._reopened_at = now
        silent = now - self._last_event_at
        logger.info("no event on the watch of Lease %s for %.0f s; reopening it", self._lease, silent)
        self._api.reopen_watch()

    def verify_while_waiting(self, now: float, announced: float, renew_seconds: float) -> None:
        """Check that the watch lives while this agent waits for a round.

        The operator answers an announcement with another record, soon if others wait too. Later any silence
        counts that is longer than a few renewals of this agent's Lease: an agent that misses two rounds is
        given up.
        """
        if now - announced > HEARD_SECONDS * self._spread:
            self.verify(
                max(announced, now - max(QUIET_SECONDS, QUIET_RENEWALS * renew_seconds) * self._spread)
            )

    def members(self) -> MemberList:
        """The ids of a large round's members. Raises ApiError, RecordError."""
        lease = self._reader.read(names.members_lease(self._job))
        return MemberList.parse(lease.annotations.get(names.MEMBERS_ANNOTATION, ""))

    def _run(self) -> None:
        tries = 0
        while not self._stop.is_set():
            retry_after = 0.0
            try:
                for lease in self._api.watch(self._lease):
                    self._last_event_at = time.monotonic()
                    if self._healthy_since is None:
                        self._healthy_since = self._last_event_at
                    self.auth_errors.record(None)
                    self.last_error = ""
                    if lease is not None:
                        self._seen(lease)
                    if lease is not None and lease.deleted:
                        self._deleted()
                    elif lease is not None:
                        self.hear(lease)
                        tries = 0
                    if self._stop.is_set():
                        return
            except ApiError as error:
                self._failed(error)
                retry_after = error.retry_after
            except Exception as error:
                # Any response: a thread that ended would leave the agent in this round for ever.
                what = f"unexpected response ({type(error).__name__})"
                # It may last for long: the traceback is a warning only once.
                level = logging.DEBUG if what == self._last_unexpected else logging.WARNING
                self._last_unexpected = what
                logger.log(level, "watch of Lease %s: %s", self._lease, what, exc_info=True)
                self._failed(ApiError(what))
            # Also after a regular end: a proxy before the API server may end every watch at once.
            tries += 1
            if self._stop.wait(pause(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS, tries, retry_after)):
                return

    def _failed(self, error: ApiError) -> None:
        self._healthy_since = None
        self.last_error = str(error)
        self.auth_errors.record(error)
        logger.debug("watch of Lease %s: %s", self._lease, error)

    def hear(self, lease: Lease) -> None:
        """Take in the round Lease, from the watch or another request."""
        text = lease.annotations.get(names.ROUND_ANNOTATION, "")
        if not text:
            return
        try:
            record = _on_one_line(RoundRecord.parse(text))
        except RecordError as error:
            self.last_error = str(error)
            logger.warning("Lease %s is ignored: %s", self._lease, error)
            return
        self._changed(record)


def _on_one_line(record: RoundRecord) -> RoundRecord:
    """What agents log of it. A message may be a worker's, of any pod, and each user may write a Lease."""
    return replace(
        record,
        cause=one_line(record.cause, MAX_CAUSE),
        message=one_line(record.message, MAX_SENTENCE),
        waiting_message=one_line(record.waiting_message, MAX_SENTENCE),
    )
