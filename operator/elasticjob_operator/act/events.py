"""Kubernetes Events on the ElasticJob: what the planner decided, in its own sentences.

A sentence that is repeated within ten minutes counts up one Event. After a burst, the rate of Events of a job
is limited; those of a kind of which there may be very many leave a part of it to the others. An Event that
cannot be sent is dropped: status and logs have the sentence, too. What is remembered of an Event is forgotten
when it can no longer be counted up, also of a job that sends no more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from hashlib import blake2b
from typing import Any, NamedTuple

from elasticjob.contract.names import API_VERSION, JOB_LABEL, KIND
from elasticjob.contract.text import one_line
from elasticjob_operator.act.job_state import EventState, SentEvent, Spawn
from elasticjob_operator.logs import about
from elasticjob_operator.observe.client import MERGE_PATCH, Api
from elasticjob_operator.observe.errors import ApiError, NotFound
from elasticjob_operator.plan.state.model import Event, Job

COMPONENT = "elasticjob-operator"

AFTER_SECONDS = 0.1
"""How long an Event waits: training often waits for the writes that follow."""
_AGGREGATE_SECONDS = 600.0
_BURST = 25.0
_KEPT_FOR_OTHERS = 10.0
"""The part of the burst that ``frequent`` Events leave to others."""
_REFILL_SECONDS = 60.0
_MAX_MESSAGE = 1_024

log = logging.getLogger("elasticjob.operator")


def log_event(job: Job, event: Event, round_number: int = 0) -> None:
    """The line of the log that says what the Event says."""
    level = logging.WARNING if event.warning else logging.INFO
    fields = about(job.key, round=round_number, pod=event.pod, cause=event.cause, reason=event.reason)
    log.log(level, "%s", event.message, extra=fields)


class _Sent(NamedTuple):
    """That an Event was sent, or counted up, at that time: which entry of which ``EventState``."""

    at: float
    state: EventState
    key: tuple[str, str]


class Recorder:
    """Sends Events, of one operator process."""

    def __init__(self, api: Api, clock: Callable[[], float], spawn: Spawn) -> None:
        self._api = api
        self._clock = clock
        self._spawn = spawn
        self._instance = os.environ.get("POD_NAME") or socket.gethostname()
        self._sent: deque[_Sent] = deque()
        """Of all jobs, the oldest first."""

    def send(self, job: Job, events: Sequence[Event], state: EventState) -> None:
        """Begin to send Events; no pass waits for it."""
        if events:
            self._spawn(self.deliver(job, events, state), "events")

    async def deliver(self, job: Job, events: Iterable[Event], state: EventState) -> None:
        """Send what the job's budget allows, in a moment. Never raises for an API error."""
        await asyncio.sleep(AFTER_SECONDS)
        async with state.turn:
            for event in events:
                try:
                    await self._send(job, event, state)
                except ApiError as error:
                    log.debug("event %s was not sent: %s", event.reason, error, extra=about(job.key))

    async def _send(self, job: Job, event: Event, state: EventState) -> None:
        now = self._clock()
        message = one_line(event.message, _MAX_MESSAGE)
        key = (event.reason, _digest(message))
        path = f"/api/v1/namespaces/{job.namespace}/events"
        self._forget_old(now)
        sent = state.sent.get(key)
        if not _allowed(state, now, _KEPT_FOR_OTHERS if event.frequent else 0.0):
            return
        wall = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if sent is not None:
            sent.count += 1
            self._remember(state, key, sent, now)
            try:
                await self._api.patch(
                    f"{path}/{sent.name}", {"count": sent.count, "lastTimestamp": wall}, MERGE_PATCH
                )
                return
            except NotFound:
                pass
        # Where many have the same second, kubectl shows them in the order of their names.
        name = f"{job.name}.{time.time_ns():x}{secrets.token_hex(2)}"
        self._remember(state, key, SentEvent(name, 1, now), now)
        await self._api.create(path, self._body(job, event, message, name, wall))

    def _remember(self, state: EventState, key: tuple[str, str], sent: SentEvent, now: float) -> None:
        sent.sent_at = now
        state.sent[key] = sent
        self._sent.append(_Sent(now, state, key))

    def _forget_old(self, now: float) -> None:
        """Forget, of all jobs, the Events that are too old to be counted up: the rate limits how many others
        there are."""
        while self._sent and now - self._sent[0].at > _AGGREGATE_SECONDS:
            old = self._sent.popleft()
            sent = old.state.sent.get(old.key)
            if sent is not None and sent.sent_at == old.at:
                del old.state.sent[old.key]

    def _body(self, job: Job, event: Event, message: str, name: str, wall: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": job.namespace, "labels": {JOB_LABEL: job.name}},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": job.namespace,
                "name": job.name,
                "uid": job.uid,
            },
            "reason": event.reason,
            "message": message,
            "type": "Warning" if event.warning else "Normal",
            "firstTimestamp": wall,
            "lastTimestamp": wall,
            "count": 1,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


def _allowed(state: EventState, now: float, kept: float) -> bool:
    refill = (now - state.tokens_at) / _REFILL_SECONDS
    state.tokens = min(_BURST, state.tokens + max(0.0, refill))
    state.tokens_at = now
    if state.tokens < kept + 1.0:
        return False
    state.tokens -= 1.0
    return True


def _digest(message: str) -> str:
    """What is remembered of a message, which may be long."""
    return blake2b(message.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
