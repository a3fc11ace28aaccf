"""The thread that writes this pod's own Lease.

``write`` sets what the Lease should contain. The thread writes it as soon as it can, retries until it is
written, and then renews it. What ``attach`` sets goes along with the next write. Several changes during one
write are merged. The first write of a process takes the Lease over. Each later write carries the
resourceVersion of the one before, so that a process learns when another process of the pod has superseded it.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from elasticjob.api.auth_errors import AuthErrors
from elasticjob.api.errors import ApiError, Conflict, NotFound, Unauthorized
from elasticjob.api.leases import LeaseApi
from elasticjob.api.retry import pause
from elasticjob.contract.names import GROUP, UNTRACKED
from elasticjob.core.renewal_schedule import RenewalSchedule
from elasticjob.core.write_trouble import WriteTrouble

logger = logging.getLogger(__name__)

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
REFUSED_PAUSE_SECONDS = 5.0
"""The longest pause after a 401: the next token may be on disk at any moment."""
WARN_SECONDS = 5.0
"""How long answers may be 401 before a warning: one or two are normal while kubelet replaces a token."""
WRITER_ANNOTATION = f"{GROUP}/writer"
"""A random id of this process: it marks an own write whose answer was lost as our own."""


class LeaseWriter:
    """Writes the Lease ``name`` on behalf of the pod ``holder`` (its UID)."""

    def __init__(self, api: LeaseApi, name: str, holder: str, labels: Mapping[str, str]) -> None:
        self._api = api
        self._name = name
        self._holder = holder
        self._labels = dict(labels)
        self._writer_id = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._annotations: dict[str, str | None] = {}
        self._version = ""
        self._requested = self._written = 0
        self._renewals = RenewalSchedule(60.0, time.monotonic(), lambda: random.uniform(0.9, 1.1))
        self._stopped = False
        self.auth_errors = AuthErrors()
        self._trouble = WriteTrouble()
        self.on_trouble: Callable[[str], None] = lambda _why: None
        """Called from the thread: with the error of each write that fails, once writes have failed for a
        while, and with "" when one has succeeded again. It must not block."""
        self.on_write: Callable[[Mapping[str, str | None]], None] = lambda _annotations: None
        """Called with what is to be written, from the thread that asks for it. It must not block."""
        self._warned = False
        self.superseded = ""
        self.last_error = ""
        self._thread = threading.Thread(target=self._run, name="elasticjob-lease", daemon=True)
        self._started = False

    def write(self, **annotations: str | None) -> None:
        """Set annotations (short names, without the group; None removes one) and write them soon."""
        with self._changed:
            self._annotations.update({f"{GROUP}/{key}": value for key, value in annotations.items()})
            self._requested += 1
            self._changed.notify_all()
            if not self._started and not self._stopped:
                self._started = True
                self._thread.start()
        self.on_write(annotations)

    def attach(self, **annotations: str | None) -> None:
        """Set annotations that go with the next write or renewal, without a write of their own."""
        with self._changed:
            self._annotations.update({f"{GROUP}/{key}": value for key, value in annotations.items()})

    @property
    def renew_seconds(self) -> float:
        """How often the Lease is renewed while there is nothing new to write."""
        return self._renewals.seconds

    def renew_every(self, seconds: float) -> None:
        """Renew the Lease this often while there is nothing new to write (``RenewalSchedule.every``)."""
        with self._changed:
            if self._renewals.every(seconds, time.monotonic()):
                self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until everything that was requested is written, at most this long. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._written >= self._requested or bool(self.superseded), seconds
            )

    def stop(self) -> None:
        """End the thread; what is not yet written stays unwritten."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._renewals.begin(time.monotonic())
                while not self._wanted() and (left := self._renewals.due - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._stopped or self.superseded:
                    return
                upto, body, began = self._requested, self._body(), time.monotonic()
            try:
                self._try_write(body)
            except ApiError as error:
                failures += 1
                longest = REFUSED_PAUSE_SECONDS if isinstance(error, Unauthorized) else MAX_PAUSE_SECONDS
                wait = pause(MIN_PAUSE_SECONDS, longest, failures, error.retry_after)
                self._failed(error)
                if self._trouble.failed(began, time.monotonic()):
                    self.on_trouble(str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, wait)
                continue
            failures = 0
            with self._changed:
                self.auth_errors.record(None)
                self.last_error, self._warned = "", False
                self._written = upto
                self._changed.notify_all()
            if self._trouble.over():
                self.on_trouble("")

    def _wanted(self) -> bool:
        return self._stopped or self._requested > self._written

    def _try_write(self, body: dict[str, Any]) -> None:
        try:
            self._send(body)
        except ApiError:
            raise
        except Exception as error:
            # Any response: after the end of this thread the agent could never write again.
            logger.warning("Lease %s: unexpected response from the API server", self._name, exc_info=True)
            raise ApiError(f"unexpected response ({type(error).__name__})") from None

    def _body(self) -> dict[str, Any]:
        renew = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        annotations = {**self._annotations, WRITER_ANNOTATION: self._writer_id}
        # The labels each time: one that was taken off by hand hides the Lease from those that list by it.
        return {
            "metadata": {"labels": self._labels, "annotations": annotations},
            "spec": {"holderIdentity": self._holder, "renewTime": renew},
        }

    def _send(self, body: dict[str, Any]) -> None:
        if not self._version:
            self._version = self._api.take_over(self._name, self._whole(body)).resource_version
            return
        body["metadata"] |= {"resourceVersion": self._version, **UNTRACKED}
        try:
            self._version = self._api.patch(self._name, body).resource_version
        except NotFound:
            self._version = ""
            raise
        except Conflict:
            self._resolve()
            raise

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """The Lease as server-side apply takes it: owned by the pod, so that it goes with it."""
        annotations = {k: v for k, v in body["metadata"]["annotations"].items() if v is not None}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._name, "uid": self._holder}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "labels": self._labels,
                "annotations": annotations,
                "ownerReferences": [owner],
            },
            "spec": body["spec"],
        }

    def _resolve(self) -> None:
        """Find out after a conflict if it was an own write whose answer was lost, or another process has
        taken over. Every process writes its id each time: if there is no id, it was removed by hand."""
        current = self._api.read(self._name)
        if current.annotations.get(WRITER_ANNOTATION) in (self._writer_id, None, ""):
            self._version = current.resource_version
            return
        with self._changed:
            self.superseded = f"another process of this pod has taken over Lease {self._name}"
            self._changed.notify_all()
        logger.error("%s", self.superseded)

    def _failed(self, error: ApiError) -> None:
        self.last_error = str(error)
        self.auth_errors.record(error)
        if not self._warned and self.auth_errors.seconds(Unauthorized) > WARN_SECONDS:
            self._warned = True
            logger.warning(
                "cannot write Lease %s: the API server rejects this pod's token (%s); the running round "
                "continues; retrying",
                self._name,
                error,
            )
        logger.debug("Lease %s: %s", self._name, error)
