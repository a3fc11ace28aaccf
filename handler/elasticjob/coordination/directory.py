"""What a label selects, kept up to date by a thread of its own as long as it is needed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.api.auth_errors import AuthErrors
from elasticjob.api.errors import ApiError, Forbidden
from elasticjob.api.listing import Change, HttpListApi
from elasticjob.api.retry import pause

logger = logging.getLogger(__name__)

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 5.0
RENEWS_SECONDS = 3.0
"""How much later one counts as silent that a new list shows unchanged: its write may be on its way."""
NEVER = float("-inf")
ASK_SECONDS = 2.0
"""After how long without a list a watch is given up once more."""
Follow = Callable[[HttpListApi], Iterator[list[Mapping[str, Any]] | Change | None]]


@dataclass(frozen=True)
class Seen:
    """An object, and the monotonic second ``at`` from which it counts as unchanged. ``changed``: when it was
    seen to change, so that its writer has lived a moment before; NEVER: lists alone have shown it since the
    last error."""

    body: Mapping[str, Any]
    at: float
    changed: float = NEVER


def changed_at(before: float, given_up: float, now: float) -> float:
    """The monotonic second from which an object counts as unchanged that a list shows at ``now`` as it was
    seen to change ``before`` the watch was given up. The time without a watch does not count: the API server
    may have been away."""
    return min(now, before + (now - given_up) + RENEWS_SECONDS)


class Directory:
    """Calls ``notify`` from its thread after each change. ``what`` is for the log, and names its requests in
    ``auth_errors``."""

    def __init__(
        self,
        api: HttpListApi,
        follow: Follow,
        what: str,
        notify: Callable[[], None],
        auth_errors: AuthErrors | None = None,
    ) -> None:
        self._api, self._follow, self._what, self._notify = api, follow, what, notify
        self._lock = threading.Lock()
        self._objects: dict[str, Seen] | None = None
        self._before: dict[str, Seen] = {}
        """The objects when the watch was given up."""
        self._known_until = time.monotonic()
        """Since when they are not known, if they are not."""
        self._failed_at = NEVER
        self._deleted: dict[str, str] = {}
        self._asked = 0.0
        self._stopped = threading.Event()
        self.auth_errors = auth_errors or AuthErrors()
        self.last_error = ""
        threading.Thread(target=self._run, name=f"elasticjob-{what}", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._api.stop()

    @property
    def refused(self) -> bool:
        """Whether it may not list or not watch; it asks on."""
        return self.auth_errors.refused(Forbidden, self._what)

    def refused_seconds(self) -> float:
        """For how long it has been refused; 0 if it may, and after one refusal."""
        return self.auth_errors.seconds(Forbidden, self._what)

    def unknown_seconds(self) -> float:
        """For how long the objects are not known; 0 if they are."""
        with self._lock:
            return time.monotonic() - self._known_until if self._objects is None else 0.0

    def failed_seconds(self) -> float:
        """How many seconds ago a request has failed last; infinity: none has."""
        with self._lock:
            return time.monotonic() - self._failed_at

    def list_again(self) -> None:
        """Give the watch up: until the objects are listed again they are not known."""
        now = time.monotonic()
        with self._lock:
            if self._objects is not None:
                self._before, self._known_until = self._objects, now
            self._objects = None
        self._asked = now
        self._api.reopen_watch()

    def objects(self) -> dict[str, Seen] | None:
        """The objects by name; None while they are not known, or there is a gap in the watch."""
        with self._lock:
            if self._objects is not None:
                return dict(self._objects)
        if self._asked and time.monotonic() - self._asked > ASK_SECONDS:
            self._asked = time.monotonic()  # there was no watch yet that could have been given up
            self._api.reopen_watch()
        return None

    def deleted(self) -> dict[str, str]:
        """The names, by UID, of the pods that were deleted while this was watched. The same event, with the
        same last state, says that a pod has lost its label; but no pod is deleted before its grace period was
        set to 0."""
        with self._lock:
            return dict(self._deleted)

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            listed = False
            retry_after = 0.0
            try:
                for item in self._follow(self._api):
                    if self._stopped.is_set():
                        return
                    failures, listed = 0, True
                    if not isinstance(item, list):  # it may list, but perhaps it may not watch
                        self.auth_errors.record(None, self._what)
                        self.last_error = ""
                    if item is not None:
                        self._take(item)
                        self._notify()
            except ApiError as error:
                self._failed(error, given_up=listed and self._asked > 0)
                retry_after = error.retry_after
            except Exception as error:
                logger.debug("%s: unexpected response", self._what, exc_info=True)
                self._failed(ApiError(f"unexpected response ({type(error).__name__})"))
            failures += 1
            self._stopped.wait(pause(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS, failures, retry_after))

    def _failed(self, error: ApiError, given_up: bool = False) -> None:
        """``given_up``: so does a watch end that ``list_again`` has given up."""
        with self._lock:
            if self._objects is not None:
                self._known_until = time.monotonic()
            if not given_up:
                self._failed_at = time.monotonic()
            self._objects = None  # who is silent, and who is gone, starts again with the next list
        self.auth_errors.record(error, self._what)
        self.last_error = str(error)
        logger.debug("%s: %s", self._what, error)
        self._notify()

    def _take(self, item: list[Mapping[str, Any]] | Change) -> None:
        now = time.monotonic()
        with self._lock:
            if isinstance(item, list):
                self._asked = 0.0
                self._objects = {_name(body): self._listed(body, now) for body in item}
                self._before = {}
                return
            name = _name(item.body)
            if self._objects is None:
                raise ApiError("the watch was given up")
            if item.deleted:
                self._objects.pop(name, None)
                metadata = item.body["metadata"]
                if metadata.get("deletionGracePeriodSeconds") == 0:
                    self._deleted[str(metadata.get("uid", ""))] = name
            else:
                self._objects[name] = Seen(item.body, now, now)

    def _listed(self, body: Mapping[str, Any], now: float) -> Seen:
        """What a list shows. An orderly end of a watch is no gap."""
        name = _name(body)
        if self._objects is not None and _same(self._objects, body):
            return self._objects[name]
        if _same(self._before, body):
            before = self._before[name]
            return Seen(body, changed_at(before.at, self._known_until, now), before.changed)
        return Seen(body, now)


def _name(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["name"])


def _same(before: Mapping[str, Seen], body: Mapping[str, Any]) -> bool:
    """Whether a list has the object as it was seen before."""
    seen = before.get(_name(body))
    return seen is not None and seen.body["metadata"].get("resourceVersion") == body["metadata"].get(
        "resourceVersion"
    )
