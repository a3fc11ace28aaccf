"""The loop around ``core``: it reads, watches and writes the Lease, and starts and stops the work of the
leading operator.

It has a client of its own, so that no renewal waits behind the writes of a thousand jobs. The requests of
this client time out early enough for another attempt before the deadline. The Lease is watched: a release is
noticed at once, and a takeover happens when the time of the last one is up, not at the next poll after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from elasticjob_operator.leadership.core import Candidate, Place, Record, Step
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import MERGE_PATCH, Api
from elasticjob_operator.observe.errors import ApiError, Conflict, Forbidden, NotFound, Unavailable
from elasticjob_operator.observe.fields import version_of

_WATCH_SECONDS = "300"
_SHORTEST_WAIT = 0.001

log = logging.getLogger("elasticjob.operator")


def clock() -> float:
    """Seconds that also count while the machine is suspended (``time.monotonic`` is frozen then on Linux):
    others do not wait for a machine that sleeps."""
    which = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if which is None else time.clock_gettime(which)


def identity() -> str:
    """The identity of this process, as in client-go: the name of the pod or host, and a unique suffix."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


class Elector:
    """See the module. ``api`` is for the Lease alone; its writes need no leadership."""

    def __init__(self, api: Api, place: Place, me: str, now: Callable[[], float] = clock) -> None:
        self.place = place
        self._api = api
        self._now = now
        self._candidate = Candidate(me, place.timing)
        self._changed = asyncio.Event()
        self._retry_at = float("-inf")
        self._busy_since: float | None = None
        self._service: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._said = ""
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{place.namespace}/leases"

    def may_write(self) -> bool:
        """Whether a write may begin now."""
        return self._candidate.may_act(self._now())

    def report(self) -> Json:
        """Which operator leads, for the probe."""
        candidate = self._candidate
        record = candidate.record
        answer: Json = {"leading": self.may_write(), "leader": record.holder if record else ""}
        if candidate.looked and candidate.seen_at > float("-inf"):
            answer["renewedSeconds"] = round(self._now() - candidate.seen_at, 1)
        return answer

    def busy_seconds(self) -> float:
        """How long it has been at one step that is no waiting: each has the time limit of its request, or
        ends when all that acts has ended."""
        return 0.0 if self._busy_since is None else self._now() - self._busy_since

    async def run(
        self,
        lead: Callable[[], Awaitable[None]],
        follow: Callable[[], Awaitable[None]],
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Stand for election until cancelled.

        Nothing is written before ``ready`` returns. Meanwhile the Lease is watched, so that the time passes
        for which that of a dead operator has to be waited out. ``lead`` is run when this process begins to
        lead, again if it fails, and cancelled if it is still under way when that ends; ``follow`` must then
        end all that writes. It is awaited before the Lease is tried again.
        """
        self._follow_lease()
        try:
            if ready is not None:
                await ready()
            log.info(
                "waiting to become the leading operator as %s (Lease %s/%s)",
                self._candidate.me,
                *self._name(),
            )
            while True:
                self._changed.clear()
                try:
                    await self._turn(lead, follow)
                except ApiError as error:
                    self._complain(error)
                    self._postpone()
                except Exception:
                    log.exception("leader election failed; retrying in %g s", self.place.timing.retry_period)
                    self._postpone()
        finally:
            await _ended(self._watch)
            await _ended(self._service)

    async def release(self) -> None:
        """Give the Lease back, so that another need not wait. ``run`` and all that writes has ended."""
        held = self.may_write()
        self._candidate = self._candidate.stepped_down()
        for _ in range(2 if held else 0):
            record = self._candidate.record
            if record is None or record.holder != self._candidate.me:
                return
            free = replace(record, holder="", duration=1.0, renewed=_wall())
            try:
                await self._patch(free)
            except Conflict:
                await self._read()  # a renewal whose answer was not waited for
            except ApiError as error:
                log.warning("cannot release the Lease: %s", error)
                return
            else:
                log.info("released the Lease %s/%s", *self._name())
                return

    async def _turn(self, lead: Callable[[], Awaitable[None]], follow: Callable[[], Awaitable[None]]) -> None:
        candidate, now = self._candidate, self._now()
        step = candidate.step(now)
        self._busy_since = now
        if step is Step.STEP_DOWN:
            await self._step_down(follow)
        elif step is Step.WAIT:
            await self._wait(candidate.due())
        elif now < self._retry_at:
            await self._wait(
                min(self._retry_at, candidate.deadline()) if candidate.leading else self._retry_at
            )
        elif step is Step.READ:
            await self._read()
        else:
            await self._write(lead)

    async def _write(self, lead: Callable[[], Awaitable[None]]) -> None:
        before, began = self._candidate, self._now()
        record = before.proposal(_wall())
        try:
            if before.leading:
                # Stepping down is punctual, also during a request.
                left = max(_SHORTEST_WAIT, before.deadline() - began)
                async with asyncio.timeout(left):
                    answer = await self._put(record)
            else:
                answer = await self._put(record)
        except asyncio.TimeoutError as error:
            raise Unavailable("PATCH lease", 0, "TimeLimit", "no answer until the renew deadline") from error
        except (Conflict, NotFound) as error:
            log.debug("leader election: %s", error)
            await self._read()
            if not before.leading:
                self._follow_lease()  # what was seen was old: so the watch may be dead
            return
        self._candidate = self._candidate.wrote(Record.read(answer), version_of(answer["metadata"]), began)
        self._said = ""
        if not before.leading and self.may_write():
            log.info("became the leading operator as %s", before.me)
            self._service = asyncio.create_task(self._take_up(lead), name="lead")

    async def _take_up(self, lead: Callable[[], Awaitable[None]]) -> None:
        """``lead``, until it succeeds: nothing is worse than a leading operator that does not act."""
        while True:
            try:
                await lead()
                return
            except Exception:
                pause = self.place.timing.retry_period
                log.exception("became the leading operator but cannot start yet; retrying in %g s", pause)
                await asyncio.sleep(pause)

    async def _step_down(self, follow: Callable[[], Awaitable[None]]) -> None:
        record = self._candidate.record
        holder = record.holder if record else ""
        other = holder != self._candidate.me
        why = f"{holder or 'no operator'} holds the Lease" if other else "the Lease was not renewed in time"
        log.warning("no longer the leading operator: %s; writing nothing from now on", why)
        await _ended(self._service)
        self._service = None
        await follow()
        self._candidate = self._candidate.stepped_down()

    async def _read(self) -> None:
        try:
            raw = await self._api.get(f"{self._leases}/{self.place.name}")
        except NotFound:
            self._saw(None, 0, fresh=True)
        else:
            self._saw(raw, version_of(raw["metadata"]), fresh=True)

    async def _put(self, record: Record) -> Json:
        if self._candidate.record is not None:
            return await self._patch(record)
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.place.name, "namespace": self.place.namespace},
            "spec": record.dump(),
        }
        return await self._api.create(self._leases, body)

    async def _patch(self, record: Record) -> Json:
        meta = {"resourceVersion": str(self._candidate.version)}
        body = {"metadata": meta, "spec": record.dump()}
        return await self._api.patch(f"{self._leases}/{self.place.name}", body, MERGE_PATCH)

    def _saw(self, raw: Json | None, version: int, fresh: bool = False) -> None:
        before = self._candidate
        record = None if raw is None else Record.read(raw)
        self._candidate = before.saw(record, version, self._now(), fresh)
        if self._candidate.record != before.record:
            holder = record.holder if record else ""
            if holder != (before.record.holder if before.record else "") and holder != before.me:
                log.info("the leading operator is %s", holder or "no operator")
            self._changed.set()

    def _follow_lease(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.create_task(self._watching(), name="leader election")

    async def _watching(self) -> None:
        query = {"fieldSelector": f"metadata.name={self.place.name}"}
        while True:
            try:
                page = await self._api.get(self._leases, query)
                items = page.get("items") or []
                version = version_of((items[0] if items else page)["metadata"])
                self._saw(items[0] if items else None, version)
                since = {
                    "resourceVersion": page["metadata"]["resourceVersion"],
                    "timeoutSeconds": _WATCH_SECONDS,
                }
                async with aclosing(self._api.watch(self._leases, {**query, **since})) as batches:
                    async for batch in batches:
                        for kind, raw in batch:
                            if kind != "BOOKMARK":
                                gone = kind == "DELETED"
                                self._saw(None if gone else raw, version_of(raw["metadata"]))
            except ApiError as error:
                self._complain(error)
            except Exception:
                log.exception("leader election: unexpected event on the watch")
            await asyncio.sleep(self.place.timing.retry_period)

    async def _wait(self, until: float) -> None:
        """Wait until that time, or until the Lease is seen to change. (`asyncio.wait_for` of Python 3.11
        drops a cancellation that comes in the same turn of the loop as its end.)"""
        left = max(_SHORTEST_WAIT, until - self._now())
        self._busy_since = None
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(left):
                await self._changed.wait()

    def _postpone(self) -> None:
        self._retry_at = self._now() + self.place.timing.retry_period * random.uniform(1.0, 1.2)

    def _complain(self, error: ApiError) -> None:
        """Once for each problem in a row."""
        text = f"leader election: {error}"
        if isinstance(error, Forbidden):
            text += f" (needed on Leases in {self.place.namespace}: get, list, watch, create, patch)"
        if text != self._said:
            log.warning("%s", text)
            self._said = text

    def _name(self) -> tuple[str, str]:
        return self.place.namespace, self.place.name


async def _ended(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _wall() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
