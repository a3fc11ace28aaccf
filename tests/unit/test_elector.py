"""The loop of leader election on a Lease in memory; ``test_leader_election`` has real ones."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from elasticjob_operator.leadership.core import Place, Timing
from elasticjob_operator.leadership.elector import Elector
from elasticjob_operator.observe.answers import Json
from elasticjob_operator.observe.client import Api, WatchBatch
from elasticjob_operator.observe.errors import AlreadyExists, Conflict, NotFound, Unavailable

LONG = Timing(lease_duration=60.0, renew_deadline=40.0, retry_period=0.05)
"""Whatever comes within the deadline of a test did not wait for the Lease to expire."""
SHORT = Timing(lease_duration=1.0, renew_deadline=0.6, retry_period=0.05)
DEADLINE = 60.0


class Leases:
    """The one Lease that there is, with its history."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version = 0
        self.events: list[tuple[str, Json]] = []
        self.changed = asyncio.Condition()

    async def store(self, kind: str, lease: Json | None) -> Json:
        self.version += 1
        shown = copy.deepcopy(lease if lease is not None else self.lease) or {}
        shown["metadata"]["resourceVersion"] = str(self.version)
        self.lease = None if lease is None else shown
        self.events.append((kind, shown))
        async with self.changed:
            self.changed.notify_all()
        return shown

    async def delete(self) -> None:
        await self.store("DELETED", None)

    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""


class Link:
    """One candidate's way to them."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.cut = False
        self.hangs = False

    async def _pass(self, what: str) -> None:
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.Event().wait()
        if self.cut:
            raise Unavailable(what, 0, "Cut", "by the test")

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        await self._pass("GET")
        there = self.leases.lease
        if params is not None:
            meta = {"resourceVersion": str(self.leases.version)}
            return {"metadata": meta, "items": [there] if there else []}
        if there is None:
            raise NotFound("GET", 404, "NotFound", path)
        return there

    async def create(self, path: str, body: Json) -> Json:
        await self._pass("POST")
        if self.leases.lease is not None:
            raise AlreadyExists("POST", 409, "AlreadyExists", path)
        return await self.leases.store("ADDED", body)

    async def patch(self, path: str, body: Json, content_type: str) -> Json:
        await self._pass("PATCH")
        there = self.leases.lease
        if there is None:
            raise NotFound("PATCH", 404, "NotFound", path)
        if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
            raise Conflict("PATCH", 409, "Conflict", content_type)
        return await self.leases.store("MODIFIED", {**there, "spec": body["spec"]})

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[WatchBatch, None]:
        since = int(params["resourceVersion"])
        yield []
        while True:
            await self._pass(f"WATCH {path}")
            batch = [e for e in self.leases.events if int(e[1]["metadata"]["resourceVersion"]) > since]
            if batch:
                since = self.leases.version
                yield copy.deepcopy(batch)
            async with self.leases.changed:
                if self.leases.version == since:
                    await self.leases.changed.wait()


class Process:
    """A candidate, what it was told, and whether it acts."""

    def __init__(self, leases: Leases, name: str, timing: Timing, ready: bool = True) -> None:
        self.name = name
        self.ready = asyncio.Event()
        if ready:
            self.ready.set()
        self.link = Link(leases)
        self.told: list[str] = []
        self.failures = 0
        """How often it can't take up the work."""
        self.elector = Elector(cast(Api, self.link), Place("system", "operator", timing), name)
        self.task = asyncio.create_task(self.elector.run(self._lead, self._follow, self._ready))

    async def _ready(self) -> None:
        await self.ready.wait()

    async def _lead(self) -> None:
        self.told.append("lead")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("by the test")
        await asyncio.Event().wait()  # like a list that takes long: no renewal may wait for it

    async def _follow(self) -> None:
        assert not self.elector.may_write()
        self.told.append("follow")

    async def end(self, release: bool) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if release:
            await self.elector.release()


async def until(condition: Callable[[], bool], what: str) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    try:
        await asyncio.wait_for(wait(), DEADLINE)
    except asyncio.TimeoutError:
        raise AssertionError(f"not within {DEADLINE:g} s: {what}") from None


@asynccontextmanager
async def contest(timing: Timing) -> AsyncIterator[tuple[Leases, Process, Process]]:
    leases = Leases()
    first = Process(leases, "first", timing)
    await until(lambda: first.told == ["lead"], "the first leads")
    second = Process(leases, "second", timing)
    try:
        await until(lambda: second.elector.report()["leader"] == "first", "the second knows that")
        yield leases, first, second
    finally:
        await first.end(release=False)
        await second.end(release=False)


async def test_a_release_is_noticed_at_once() -> None:
    async with contest(LONG) as (leases, first, second):
        await first.end(release=True)
        assert not first.elector.may_write()
        await until(second.elector.may_write, "the second leads")
        assert leases.lease is not None
        assert leases.lease["spec"]["leaseTransitions"] == 1


async def test_the_lease_of_a_dead_leader_is_waited_out_while_a_new_one_lists() -> None:
    now = 100.0
    leases = Leases()
    first = Process(leases, "first", LONG)
    await until(lambda: first.told == ["lead"], "the first leads")
    await first.end(release=False)
    second = Process(leases, "second", LONG, ready=False)
    second.elector._now = lambda: now
    try:
        await until(lambda: second.elector.report()["leader"] == "first", "the second watches the Lease")
        now += LONG.lease_duration  # the lists take that long
        assert (second.told, leases.holder()) == ([], "first")
        second.ready.set()
        await until(lambda: second.told == ["lead"], "the second leads without another wait")
    finally:
        await second.end(release=False)


async def test_a_renewal_goes_on_while_the_leader_takes_over() -> None:
    async with contest(LONG) as (leases, first, second):
        seen = leases.version
        await until(lambda: leases.version > seen + 20, "20 renewals")
        assert first.elector.may_write()
        assert second.told == []


async def test_who_is_cut_off_steps_down_before_the_other_takes_over_and_may_come_back() -> None:
    async with contest(SHORT) as (leases, first, second):
        first.link.cut = True
        await until(lambda: bool(second.told) or not first.elector.may_write(), "the deadline")
        assert second.told == [], "the second waits longer than the first acts"
        await until(second.elector.may_write, "the second leads")
        assert first.told == ["lead", "follow"]
        first.link.cut = False
        second.link.cut = True
        await until(first.elector.may_write, "the first leads again")
        assert first.told == ["lead", "follow", "lead"]
        assert leases.holder() == "first"


async def test_a_renewal_that_hangs_does_not_hold_up_stepping_down() -> None:
    async with contest(SHORT) as (_leases, first, second):
        first.link.hangs = True
        await until(lambda: first.told == ["lead", "follow"], "it has stepped down")
        await until(second.elector.may_write, "the second leads")


async def test_who_can_not_take_up_the_work_tries_again() -> None:
    async with contest(LONG) as (_leases, first, second):
        second.failures = 2
        await first.end(release=True)
        await until(lambda: second.told == ["lead"] * 3, "it has tried again")
        assert second.elector.may_write()


async def test_an_outage_that_nobody_else_used_ends_with_the_same_leader() -> None:
    async with contest(SHORT) as (_leases, first, second):
        await second.end(release=False)
        first.link.cut = True
        await until(lambda: first.told[-1] == "follow", "it has stepped down")
        first.link.cut = False
        await until(first.elector.may_write, "it leads again")


async def test_somebody_deletes_the_lease() -> None:
    async with contest(LONG) as (leases, first, second):
        await leases.delete()
        await until(lambda: leases.holder() == "first", "the leader makes it again")
        assert first.told == ["lead"]
        assert second.told == []


async def test_somebody_writes_another_name_into_it() -> None:
    async with contest(LONG) as (leases, first, second):
        assert leases.lease is not None
        edited = copy.deepcopy(leases.lease)
        edited["spec"]["holderIdentity"] = "second"
        await leases.store("MODIFIED", edited)
        await until(lambda: first.told == ["lead", "follow"], "the first steps down")
        await until(second.elector.may_write, "the second takes what is its own")
